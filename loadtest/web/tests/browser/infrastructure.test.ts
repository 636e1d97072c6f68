import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { colourOf, useBrowser } from '../support/browser';
import { COLOURS, gpu, hello, worker, workers } from '../support/fixtures';
import type { Workers } from '../../src/wire';

const browser = useBrowser();

const POD = 'gtc-demo-0-trtllmworker-7d9f8b6c5-x2x4z';
const section = (page: Page) =>
  page.locator('section', { has: page.getByRole('heading', { name: 'Infrastructure', exact: true }) });
const cards = (page: Page) => section(page).getByTestId('worker');

function open(seen: Partial<Workers>, scheme: 'light' | 'dark' = 'light') {
  return browser.open({
    scheme,
    before: (stub) => {
      stub.hello = hello({ workers: workers(seen) });
    },
  });
}

describe('workers', () => {
  test('S-171: the kind of GPU and the model are named', async () => {
    const { page, stub } = await open({});
    expect(await page.getByTestId('hardware').textContent()).toBe('H200 (simulated) · kvlane-small');
    await stub.say(workers({ gpu: null }));
    await expect.poll(() => page.getByTestId('hardware').textContent()).toBe('kvlane-small');
  });

  test('S-172: each has a card with its short name, and a box for each GPU', async () => {
    const names = [POD, 'kvlane-worker-2', '127.0.0.1:8101'];
    const { page } = await open({
      workers: names.map((name) => worker(name, { gpus: [gpu('0', 10), gpu('1', 20)] })),
    });
    expect(await cards(page).count()).toBe(3);
    expect(await section(page).getByTestId('gpu').count()).toBe(6);
    const titles = cards(page).getByRole('heading', { level: 3 });
    expect(await titles.allTextContents()).toEqual([
      'trtllmworker-x2x4z',
      'kvlane-worker-2',
      '127.0.0.1:8101',
    ]);
    expect(await titles.first().getAttribute('title')).toBe(POD);
  });

  test.each(['light', 'dark'] as const)('S-173: a busy GPU is amber, then red, %s', async (scheme) => {
    const steps = [
      [29.9, 'green', 'good'],
      [30, 'amber', 'warn'],
      [70, 'amber', 'warn'],
      [70.1, 'red', 'bad'],
    ] as const;
    const gpus = steps.map(([util], at) => gpu(String(at), util));
    const { page } = await open({ workers: [worker('w', { gpus })] }, scheme);
    for (const [at, [util, level, tone]] of steps.entries()) {
      const value = page.getByTestId('gpu-util').nth(at);
      expect(await value.textContent()).toBe(`${util.toFixed(1)}%`);
      expect(await value.getAttribute('data-level')).toBe(level);
      expect(await colourOf(value)).toBe(COLOURS[scheme][tone]);
      const bar = page.getByRole('meter', { name: `GPU ${at} utilisation` });
      expect(await bar.getAttribute('aria-valuenow')).toBe(String(util));
      expect(await colourOf(bar.locator('div'), 'backgroundColor')).toBe(COLOURS[scheme][tone]);
    }
  });

  test('S-174: memory is the share of the framebuffer that is used', async () => {
    const { page } = await open({
      workers: [worker('w', { gpus: [gpu('0', 63), gpu('1', null, { memory_used_mib: null })] })],
    });
    expect(await page.getByTestId('gpu-memory').allTextContents()).toEqual(['90.0%', '—']);
    expect(await page.getByTestId('gpu-util').nth(1).textContent()).toBe('—');
    expect(await page.getByTestId('gpu-util').nth(1).getAttribute('data-level')).toBe('none');
  });

  test('S-175: Prometheus that cannot be reached is missed, and the cards stay', async () => {
    const { page, stub } = await open({ prometheus: 'unavailable', from: 'workers' });
    const warning = section(page).getByRole('status');
    expect(await warning.textContent()).toBe('Prometheus unavailable');
    expect(await colourOf(warning.locator('p'))).toBe(COLOURS.light.warn);
    expect(await cards(page).count()).toBe(3);
    expect(await page.getByTestId('workers-from').textContent()).toBe('from the workers’ own metrics');
    await stub.say(workers());
    await expect.poll(() => warning.textContent()).toBe('');
    expect(await page.getByTestId('workers-from').textContent()).toBe('from Prometheus');
  });

  test('S-175: without one there is nothing to warn of', async () => {
    const { page } = await open({ prometheus: 'not_configured', from: 'workers' });
    expect(await section(page).getByRole('status').textContent()).toBe('');
    expect(await page.getByTestId('workers-from').textContent()).toBe('from the workers’ own metrics');
  });

  test('S-175: a server that can see neither says so', async () => {
    const { page } = await open({ prometheus: 'unavailable', from: 'workers', workers: [] });
    expect(await section(page).getByRole('status').textContent()).toBe('Prometheus unavailable');
    expect(await section(page).textContent()).toContain('No workers known yet.');
  });

  test('S-186: accepted drafts are shown where there are any', async () => {
    const { page } = await open({ workers: [worker('a', { acceptance_pct: 62.1 }), worker('b')] });
    const figures = (at: number) => cards(page).nth(at).locator('dl > div').allTextContents();
    expect(await figures(0)).toEqual([
      'In flight21 of 64',
      'Waiting1',
      'KV cache used31.2%',
      'Blocks cached9,120 of 10,662',
      'Blocks evicted182,233',
      'Drafts accepted62.1%',
    ]);
    expect((await figures(1)).join()).not.toContain('Drafts');
  });

  test('an index that is not trusted whole says how far it is', async () => {
    const { page } = await open({ workers: [worker('a', { trust: 0.8 }), worker('b')] });
    expect(await cards(page).nth(0).textContent()).toContain('Index trust80%');
    expect(await cards(page).nth(1).textContent()).not.toContain('Index trust');
  });

  test('what one carries is a dash where it is not known', async () => {
    const unknown = { requests: null, slots: null, waiting: null, kv_usage_pct: null, cached_blocks: null };
    const { page } = await open({
      workers: [worker('a', { ...unknown, evicted_blocks: null, state: 'draining' })],
    });
    expect(await cards(page).locator('dd').allTextContents()).toEqual(['—', '—', '—', '—', '—']);
    expect(await colourOf(cards(page).locator('.badge'))).toBe(COLOURS.light.warn);
  });
});
