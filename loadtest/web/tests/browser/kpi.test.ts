import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { BOOTH, boxOf, colourOf, LAPTOP, useBrowser } from '../support/browser';
import { COLOURS, emptySample, figures, hello, sample, state, T0 } from '../support/fixtures';
import type { Stub } from '../support/stub';

const browser = useBrowser();

const LABELS = ['RPS', 'Requests', 'TOPS', 'KV Cache Hit', 'Queued', 'Errors'];
const values = (page: Page) => page.getByTestId('kpi-value').allTextContents();
const DASHES = LABELS.map(() => '—');

function running(stub: Stub): void {
  stub.hello = hello({ sample: sample() });
}

describe('six figures', () => {
  test.each([LAPTOP, BOOTH])('S-159: lie in one row at $width', async (size) => {
    const { page } = await browser.open({ size, before: running });
    const cards = await page.getByTestId('kpi').all();
    expect(await page.getByTestId('kpi-label').allTextContents()).toEqual(LABELS);
    const boxes = await Promise.all(cards.map(boxOf));
    expect(boxes).toHaveLength(6);
    for (const [at, box] of boxes.entries()) {
      expect(Math.abs(box.y - (boxes[0]?.y ?? 0))).toBeLessThanOrEqual(1);
      if (at > 0) expect(box.x).toBeGreaterThan(boxes[at - 1]?.x ?? 0);
    }
  });

  test('S-160 to S-165: have their digits', async () => {
    const { page } = await browser.open({ before: running });
    expect(await values(page)).toEqual(['2.57', '12,345', '2,262.8', '94.3%', '7', '0']);
    expect(await page.getByTestId('kpi').nth(4).textContent()).toContain('4 before first token');
  });

  test('S-161: requests are counted since Start', async () => {
    const { page, stub } = await browser.open({ before: running });
    await stub.say(state({ run: 'stopped' }));
    await stub.say(emptySample(T0 + 5));
    await expect.poll(() => values(page)).toEqual(DASHES);
    await stub.say(state({ run: 'running' }));
    await stub.say(sample(T0 + 10, { requests: 3 }));
    await expect.poll(async () => (await values(page))[1]).toBe('3');
  });

  test('S-163: the hit rate says whose it is', async () => {
    const { page, stub } = await browser.open({ before: running });
    const card = page.getByTestId('kpi').nth(3);
    const bubble = card.getByRole('tooltip');
    await card.getByRole('button', { name: 'About KV Cache Hit' }).hover();
    await bubble.waitFor();
    for (const [from, words] of [
      ['router', 'from the router'],
      ['client', 'as clients were told'],
      ['prometheus', 'from Prometheus'],
    ] as const) {
      await stub.say(sample(T0 + 1, { kv_hit_from: from }));
      await expect.poll(() => card.locator('.kpi__about').textContent()).toBe(words);
      expect(await bubble.textContent()).toContain(words);
    }
  });

  test.each(['light', 'dark'] as const)(
    'S-165: errors are red as soon as there are any, %s',
    async (scheme) => {
      const { page, stub } = await browser.open({ scheme, before: running });
      const card = page.getByTestId('kpi').nth(5);
      const value = card.getByTestId('kpi-value');
      expect(await value.getAttribute('data-level')).toBe('none');
      expect(await colourOf(value)).toBe(COLOURS[scheme].ink);
      expect(await card.getAttribute('aria-label')).toBe('0 errors');
      await stub.say(sample(T0 + 1, { errors: 3 }));
      await expect.poll(() => value.getAttribute('data-level')).toBe('red');
      expect(await colourOf(value)).toBe(COLOURS[scheme].bad);
      expect(await card.getAttribute('aria-label')).toBe('3 errors');
    },
  );

  test('S-259: say what they mean', async () => {
    const { page } = await browser.open({ before: running });
    for (const [at, label] of LABELS.entries()) {
      const card = page.getByTestId('kpi').nth(at);
      await card.getByRole('button', { name: `About ${label}` }).focus();
      await card.getByRole('tooltip').waitFor();
    }
  });

  test('S-188: what they mean stays while it is looked at, and goes when it is in the way', async () => {
    const { page } = await browser.open({ before: running });
    const card = page.getByTestId('kpi').first();
    const sign = card.getByRole('button', { name: 'About RPS' });
    const bubble = card.getByRole('tooltip');
    await sign.hover();
    await bubble.waitFor();
    // Over the gap and onto the words, as slowly as a hand.
    const [from, to] = [await boxOf(sign), await boxOf(bubble)];
    await page.mouse.move(from.x + from.width + 3, from.y + 5);
    await page.mouse.move(to.x + to.width / 2, to.y + to.height / 2);
    await page.waitForTimeout(400);
    expect(await bubble.isVisible()).toBe(true);
    await page.mouse.move(5, 5);
    await bubble.waitFor({ state: 'hidden' });
    // Escape is pressed wherever one is.
    await page.getByRole('link', { name: 'Dashboard' }).focus();
    await sign.hover();
    await bubble.waitFor();
    await page.keyboard.press('Escape');
    await bubble.waitFor({ state: 'hidden' });
    // A pointer that leaves does not take it from a keyboard.
    await sign.focus();
    await bubble.waitFor();
    await sign.hover();
    await page.mouse.move(5, 5);
    await page.waitForTimeout(400);
    expect(await bubble.isVisible()).toBe(true);
    await sign.blur();
    await bubble.waitFor({ state: 'hidden' });
  });
});

describe('S-166: what is not known is a dash', () => {
  test('before the first sample', async () => {
    const { page } = await browser.open();
    expect(await values(page)).toEqual(DASHES);
  });

  test('when nothing runs, and while it starts, whatever came last', async () => {
    const { page, stub } = await browser.open({ before: running });
    for (const run of ['stopped', 'starting'] as const) {
      await stub.say(state({ run: 'running' }));
      await expect.poll(async () => (await values(page))[0]).toBe('2.57');
      await stub.say(state({ run }));
      await expect.poll(() => values(page)).toEqual(DASHES);
    }
  });

  const LACKS = [
    ['RPS', { figures: figures({ rps: null }) }],
    ['Requests', { requests: null }],
    ['TOPS', { figures: figures({ tops: null }) }],
    ['KV Cache Hit', { kv_hit_pct: null, kv_hit_from: null }],
    ['Queued', { queued: null }],
    ['Errors', { errors: null }],
  ] as const;

  test('of one alone when only its source is away', async () => {
    const { page, stub } = await browser.open({ before: running });
    const unknown = async () => {
      const shown = await values(page);
      return LABELS.filter((_, at) => shown[at] === '—');
    };
    for (const [label, change] of LACKS) {
      await stub.say(sample(T0 + 1, change));
      await expect.poll(unknown).toEqual([label]);
    }
  });
});
