import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { boxOf, colourOf, REFUSED, useBrowser, type Opening } from '../support/browser';
import { baselines, COLOURS, emptySample, figures, hello, sample, state, T0 } from '../support/fixtures';
import { furnish } from '../support/furnished';

const browser = useBrowser();

const COLUMNS = ['Live p50', 'KV p50', 'RR p50', 'Live p95', 'KV p95', 'RR p95'];
const ROWS = ['TTFT (ms)', 'TPOT (ms)', 'ITL (ms)', 'Latency (s)'];

const panel = (page: Page) =>
  page.locator('section', { has: page.getByRole('heading', { name: 'Live vs Round-Robin' }) });
const table = (page: Page) => panel(page).locator('.live-table');

function cell(page: Page, row: string, column: string) {
  return table(page).locator('tbody tr').nth(ROWS.indexOf(row)).locator('td').nth(COLUMNS.indexOf(column));
}

const running = (level: object, more: Partial<Parameters<typeof hello>[0]> = {}) => ({
  before: (stub: { hello: object }) => {
    stub.hello = hello({ state: state({ level } as never), sample: sample(), ...more });
  },
});

/** A dashboard that has heard of a load, and of what it is compared with. */
async function openRunning(
  level: object,
  more: Partial<Parameters<typeof hello>[0]> = {},
  opening: Opening = {},
) {
  const visit = await browser.open({ ...running(level, more), ...opening });
  await visit.page.locator('.benchmark').waitFor();
  return visit;
}

describe('S-148: the dashboard', () => {
  test('has four sections, one below the other', async () => {
    const { page } = await browser.open({ before: furnish });
    const sections = page.locator('main > section[aria-labelledby]');
    expect(await sections.getByRole('heading', { level: 2 }).allTextContents()).toEqual([
      'Live vs Round-Robin',
      'Metrics',
      'Static Benchmark Comparison',
      'Infrastructure',
    ]);
    let bottom = 0;
    for (const section of await sections.all()) {
      const box = await boxOf(section);
      expect(box.y).toBeGreaterThanOrEqual(bottom);
      bottom = box.y + box.height;
    }
  });
});

describe('live figures beside recorded ones', () => {
  test('S-155: there is no table before there is an answer', async () => {
    const { page, stub } = await browser.open();
    expect(await panel(page).locator('.live-table').count()).toBe(0);
    expect(await page.getByTestId('no-answers').textContent()).toContain('No answers yet');
    await stub.say(emptySample(T0));
    await stub.say(sample(T0 + 1));
    await table(page).waitFor();
    expect(await page.getByTestId('no-answers').count()).toBe(0);
    await stub.say(emptySample(T0 + 2));
    await page.getByTestId('no-answers').waitFor();
    expect(await panel(page).locator('.live-table').count()).toBe(0);
  });

  test('S-156, S-157: rows, columns and their digits', async () => {
    const { page } = await openRunning({ concurrency: 60 });
    expect(await table(page).locator('thead th').allTextContents()).toEqual(COLUMNS);
    expect(await table(page).getByTestId('row-name').allTextContents()).toEqual(ROWS);
    expect(await table(page).locator('caption').textContent()).toContain('live: last 60 s');
    const shown = await table(page)
      .locator('tbody tr')
      .evaluateAll((rows) => rows.map((row) => [...row.querySelectorAll('td')].map((td) => td.textContent)));
    expect(shown).toEqual([
      ['249', '249', '274', '446', '446', '655'],
      ['26.0', '26.0', '28.0', '27.0', '27.0', '30.0'],
      ['25.6', '26.0', '28.0', '26.9', '27.0', '30.0'],
      ['24.3', '24.3', '24.6', '27.7', '27.7', '30.1'],
    ]);
  });

  test('S-149: round robin has the figures of the same level, or of the nearest', async () => {
    const { page, stub } = await openRunning({ concurrency: 60 }, { slider: { min: 6, max: 180, step: 1 } });
    for (const [concurrency, expected, words] of [
      [60, '655', 'recorded at 60 conversations'],
      [120, '643', 'recorded at 120 conversations'],
      [6, '655', 'nearest recorded level: 60'],
    ] as const) {
      await stub.say(state({ level: { concurrency } } as never));
      await expect.poll(() => table(page).locator('caption').textContent()).toContain(words);
      expect(await cell(page, 'TTFT (ms)', 'RR p95').textContent()).toBe(expected);
    }
  });

  test('S-149: a load by rate has nothing to be compared with', async () => {
    const { page } = await openRunning({ rate: 2.5 });
    expect(await cell(page, 'TTFT (ms)', 'RR p95').textContent()).toBe('—');
    expect(await cell(page, 'TTFT (ms)', 'Live p95').textContent()).toBe('446');
    expect(await table(page).locator('caption').textContent()).toContain('nothing recorded to compare with');
  });

  test('S-150: the KV-aware recording is there as well', async () => {
    const { page } = await openRunning({ concurrency: 60 });
    expect(await cell(page, 'TTFT (ms)', 'KV p50').textContent()).toBe('249');
    expect(await cell(page, 'TTFT (ms)', 'KV p95').textContent()).toBe('446');
  });

  test.each(['light', 'dark'] as const)('S-158: what is recorded is muted, %s', async (scheme) => {
    const { page } = await openRunning({ concurrency: 60 }, {}, { scheme });
    for (const row of ROWS) {
      for (const column of COLUMNS) {
        const live = column.startsWith('Live');
        const of = cell(page, row, column);
        expect(await colourOf(of), `${row} ${column}`).toBe(COLOURS[scheme][live ? 'ink' : 'quiet']);
        expect(await of.evaluate((td) => getComputedStyle(td).fontWeight)).toBe(live ? '600' : '400');
      }
    }
  });

  test('S-259: every row says what it means', async () => {
    const { page } = await openRunning({ concurrency: 60 });
    for (const name of ['TTFT', 'TPOT', 'ITL', 'Latency']) {
      const hint = table(page).getByRole('button', { name: `About ${name}` });
      const id = await hint.getAttribute('aria-describedby');
      const words = page.locator(`[id="${id}"]`);
      expect(await words.isVisible()).toBe(false);
      await hint.focus();
      await words.waitFor();
      expect((await words.textContent())?.length).toBeGreaterThan(30);
      await page.keyboard.press('Escape');
      await words.waitFor({ state: 'hidden' });
    }
  });
});

describe('the objective', () => {
  test('S-151: is written out', async () => {
    const { page } = await browser.open();
    expect(await page.getByTestId('slo').textContent()).toBe('SLO: TTFT p95 < 600 ms, TPOT p95 < 60 ms');
  });

  test.each(['light', 'dark'] as const)('S-152: colours what is near and over it, %s', async (scheme) => {
    const { page, stub } = await browser.open({ scheme });
    const words = { green: null, yellow: 'near SLO', red: 'over SLO' } as const;
    const tones = { green: 'ink', yellow: 'warn', red: 'bad' } as const;
    const steps = [
      [539.9, 53.9, 'green'],
      [540, 54, 'yellow'],
      [600, 60, 'yellow'],
      [600.1, 60.1, 'red'],
    ] as const;
    for (const [at, [ttft, tpot, level]] of steps.entries()) {
      const over = figures({ ttft_p95_ms: ttft, tpot_p95_ms: tpot, itl_p95_ms: 900, e2e_p95_s: 900 });
      await stub.say(sample(T0 + at, { figures: over }));
      for (const row of ['TTFT (ms)', 'TPOT (ms)']) {
        const of = cell(page, row, 'Live p95');
        await expect.poll(() => of.getAttribute('data-level')).toBe(level);
        expect(await colourOf(of), `${row} ${level}`).toBe(COLOURS[scheme][tones[level]]);
        const sign = of.getByRole('img');
        expect(await sign.count()).toBe(words[level] === null ? 0 : 1);
        if (words[level] !== null) expect(await sign.getAttribute('aria-label')).toBe(words[level]);
      }
      for (const row of ['ITL (ms)', 'Latency (s)']) {
        expect(await colourOf(cell(page, row, 'Live p95'))).toBe(COLOURS[scheme].ink);
      }
      expect(await colourOf(cell(page, 'TTFT (ms)', 'Live p50'))).toBe(COLOURS[scheme].ink);
    }
  });

  test('of engines that run eight times as fast is an eighth, and so is what was recorded', async () => {
    const { page } = await openRunning(
      { concurrency: 60 },
      { speed: 8, objective: { ttft_ms: 75, tpot_ms: 7.5 } },
    );
    expect(await page.getByTestId('slo').textContent()).toBe('SLO: TTFT p95 < 75 ms, TPOT p95 < 7.5 ms');
    expect(await cell(page, 'TTFT (ms)', 'RR p95').textContent()).toBe('82');
    expect(await cell(page, 'TPOT (ms)', 'RR p95').textContent()).toBe('3.8');
    expect(await cell(page, 'Latency (s)', 'RR p50').textContent()).toBe('3.1');
    expect(await table(page).locator('caption').textContent()).toContain('recorded times divided by 8');
    expect(await cell(page, 'TTFT (ms)', 'Live p95').getAttribute('data-level')).toBe('red');
    // What was recorded stays as it was recorded in its own table.
    expect(await page.locator('.benchmark tbody tr').first().locator('td').first().textContent()).toContain(
      '655',
    );
  });
});

describe('figures of a sweep', () => {
  const own = { ttft_ms: 75, tpot_ms: 7.5 };

  test.each([
    ['measured on this very clock stay as they are', own, '655'],
    ['measured by another are divided by the speed', { ttft_ms: 600, tpot_ms: 60 }, '82'],
  ])('%s', async (_, objective, expected) => {
    const { page } = await openRunning(
      {},
      {},
      {
        before: (stub) => {
          stub.answer('GET /api/baselines', baselines({ source: 'sweep', replaced: true, objective }));
          stub.hello = hello({ speed: 8, objective: own, sample: sample() });
        },
      },
    );
    expect(await cell(page, 'TTFT (ms)', 'RR p95').textContent()).toBe(expected);
    const caption = await table(page).locator('caption').textContent();
    expect(caption?.includes('recorded times divided by 8')).toBe(expected === '82');
  });
});

describe('what has to be known beside the figures', () => {
  test('is said when the server has something to say', async () => {
    const note = 'simulated engines without the delay outside the engine that the recording has';
    const { page } = await openRunning({ concurrency: 60 }, { note });
    expect(await page.getByTestId('note').textContent()).toBe(note);
  });

  test('is not there otherwise', async () => {
    const { page } = await openRunning({ concurrency: 60 });
    expect(await page.getByTestId('note').count()).toBe(0);
  });

  test('S-095: how many conversations are held', async () => {
    const { page, stub } = await openRunning({ concurrency: 60 });
    expect(await page.getByTestId('active').textContent()).toBe('60 active');
    await stub.say(sample(T0 + 1, { active: 58 }));
    await expect.poll(() => page.getByTestId('active').textContent()).toBe('58 active');
  });

  test('figures to compare with that cannot be had are missed in red, and live ones are shown', async () => {
    const { page, stub, allow } = await openRunning({ concurrency: 60 });
    allow(REFUSED);
    stub.fail('GET /api/baselines', 503, 'not read yet');
    await stub.say(hello({ instance: 'another', sample: sample() }));
    const error = page.getByTestId('error').locator('span');
    await error.waitFor();
    expect(await error.textContent()).toBe('figures to compare with: not read yet');
    expect(await cell(page, 'TTFT (ms)', 'RR p95').textContent()).toBe('—');
    expect(await cell(page, 'TTFT (ms)', 'Live p95').textContent()).toBe('446');
    // They are asked for again after five seconds, and then nothing is missed any more.
    stub.answer('GET /api/baselines', baselines());
    await expect.poll(() => cell(page, 'TTFT (ms)', 'RR p95').textContent(), { timeout: 10_000 }).toBe('655');
    expect(await page.getByTestId('error').count()).toBe(0);
  });

  test('a server that greets in other words is named as what is wrong', async () => {
    const { page } = await browser.open({
      greeted: false,
      before: (stub) => {
        stub.hello = hello({ speed: 'fast' });
      },
    });
    const error = page.getByTestId('error').locator('span');
    await error.waitFor();
    expect(await error.textContent()).toBe(
      'this page and its server do not match: hello.speed is string, expected a number',
    );
  });
});
