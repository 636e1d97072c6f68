import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { colourOf, REFUSED, SOCKET_LOST, useBrowser } from '../support/browser';
import { baselines, COLOURS, hello, sample, state, T0 } from '../support/fixtures';

const browser = useBrowser();

/** Conversations at a time; round robin, KV-aware and the gain: of TTFT, then of TPOT. */
const EXPECTED = [
  ['60', '655 red', '446 green', '+31.9%', '30 green', '27 green', '+10.0%'],
  ['80', '637 red', '508 green', '+20.3%', '33 green', '33 green', '+0.0%'],
  ['100', '652 red', '547 yellow', '+16.1%', '48 green', '43 green', '+10.4%'],
  ['120', '643 red', '530 green', '+17.6%', '50 green', '46 green', '+8.0%'],
  ['140', '643 red', '650 red', '-1.1%', '52 green', '46 green', '+11.5%'],
  ['160', '722 red', '704 red', '+2.5%', '54 yellow', '48 green', '+11.1%'],
  ['180', '732 red', '3,143 red', '-329.4%', '54 yellow', '48 green', '+11.1%'],
];

const FILLS = {
  light: { green: 'rgb(223, 243, 230)', yellow: 'rgb(253, 240, 210)', red: 'rgb(251, 224, 222)' },
  dark: { green: 'rgb(18, 48, 31)', yellow: 'rgb(55, 41, 12)', red: 'rgb(64, 25, 23)' },
} as const;
const TONES = { green: 'good', yellow: 'warn', red: 'bad' } as const;

const table = (page: Page) => page.locator('.benchmark');

async function rows(page: Page): Promise<string[][]> {
  return table(page)
    .locator('tbody tr')
    .evaluateAll((all) =>
      all.map((row) =>
        [...row.children].map((cell) => {
          const figure = cell.firstChild?.textContent ?? '';
          const level = (cell as HTMLElement).dataset.level;
          return level === undefined ? figure : `${figure} ${level}`;
        }),
      ),
    );
}

async function open(scheme: 'light' | 'dark' = 'light') {
  const visit = await browser.open({ scheme });
  await table(visit.page).waitFor();
  return visit;
}

const SWEEP = baselines({
  source: 'sweep',
  replaced: true,
  about: 'your sweep mine.json (simulated), Round-robin and KV-aware, 3 repeats',
  rows: baselines()
    .rows.slice(0, 2)
    .map((row, at) => ({
      ...row,
      concurrency: [50, 150][at] ?? 0,
      kv: row.kv && { ...row.kv, tpot_p95_ms: 26.55 },
    })),
});

describe('what was recorded', () => {
  test('S-167, S-168, S-170: seven rows of seven columns', async () => {
    const { page } = await open();
    expect(await rows(page)).toEqual(EXPECTED);
    const header = page.getByRole('group', { name: 'Static benchmark comparison' });
    for (const name of ['Concurrency', 'TTFT p95 RR', 'TTFT p95 KV', 'TTFT p95 Improvement']) {
      expect(await header.getByRole('columnheader', { name, exact: true }).count(), name).toBe(1);
    }
    for (const name of ['TPOT p95 RR', 'TPOT p95 KV', 'TPOT p95 Improvement']) {
      expect(await header.getByRole('columnheader', { name, exact: true }).count(), name).toBe(1);
    }
    expect(await table(page).locator('th[scope=colgroup]').count()).toBe(2);
  });

  test.each(['light', 'dark'] as const)(
    'S-169: all 28 cells have the colour of their level, %s',
    async (scheme) => {
      const { page } = await open(scheme);
      const cells = await table(page)
        .locator('td[data-level]')
        .evaluateAll((all) =>
          all.map((cell) => {
            const { color, backgroundColor } = getComputedStyle(cell);
            return [(cell as HTMLElement).dataset.level, color, backgroundColor];
          }),
        );
      expect(cells).toHaveLength(28);
      for (const [level, color, fill] of cells) {
        const known = level as keyof typeof TONES;
        expect([color, fill], level).toEqual([COLOURS[scheme][TONES[known]], FILLS[scheme][known]]);
      }
    },
  );

  test('S-169: a level is said by a sign as well', async () => {
    const { page } = await open();
    const over = await table(page).getByRole('img', { name: 'over SLO' }).count();
    const near = await table(page).getByRole('img', { name: 'near SLO' }).count();
    expect([over, near]).toEqual([10, 3]);
  });

  test('S-167: does not change with the load', async () => {
    const { page, stub } = await open();
    const before = await table(page).innerHTML();
    for (let t = 1; t <= 20; t += 1) await stub.say(sample(T0 + t));
    await stub.say(state({ mode: 'round_robin', level: { concurrency: 160 } } as never));
    await page.locator('.live-table').waitFor();
    await expect.poll(() => page.getByRole('slider').inputValue()).toBe('160');
    expect(await table(page).innerHTML()).toBe(before);
  });

  test('says where it comes from', async () => {
    const { page } = await open();
    expect(await page.getByTestId('source').textContent()).toBe(
      'Recorded: six sweeps, 300 s windows, 3 × H200, 70B model in FP8',
    );
    expect(await page.getByRole('button', { name: 'Back to the first figures' }).count()).toBe(0);
  });
});

describe('a sweep of one’s own', () => {
  test('takes the place of what was recorded, here and beside the live figures, and goes again', async () => {
    const { page, stub } = await open();
    stub.answer('PUT /api/baselines', SWEEP);
    stub.answer('DELETE /api/baselines', baselines());
    const file = JSON.stringify({ schema: 'kvlane-load.sweep/1' });
    const chooser = page.waitForEvent('filechooser');
    await page.getByRole('button', { name: 'Load a sweep file…' }).click();
    await (
      await chooser
    ).setFiles({ name: 'mine.json', mimeType: 'application/json', buffer: Buffer.from(file) });
    await expect.poll(() => page.getByTestId('source').textContent()).toBe(SWEEP.about);
    expect(stub.asked('PUT /api/baselines').map(({ text }) => text)).toEqual([file]);
    expect(await rows(page)).toEqual([
      ['50', '655 red', '446 green', '+31.9%', '30.0 green', '26.6 green', '+11.5%'],
      ['150', '637 red', '508 green', '+20.3%', '33.0 green', '26.6 green', '+19.5%'],
    ]);
    await stub.say(sample(T0 + 1));
    await expect
      .poll(() => page.locator('.live-table caption').allTextContents())
      .toEqual(['live: last 60 s · nearest recorded level: 50']);

    const back = page.getByRole('button', { name: 'Back to the first figures' });
    await back.click();
    await expect.poll(() => rows(page)).toEqual(EXPECTED);
    expect(stub.asked('DELETE /api/baselines')).toHaveLength(1);
    expect(await back.count()).toBe(0);
  });

  test('that the server began with is what there is: there is no way back from it', async () => {
    const { page } = await browser.open({
      before: (stub) => stub.answer('GET /api/baselines', { ...SWEEP, replaced: false }),
    });
    await expect.poll(() => page.getByTestId('source').textContent()).toBe(SWEEP.about);
    expect(await page.getByRole('button', { name: 'Back to the first figures' }).count()).toBe(0);
  });

  test('can be neither loaded nor put away on a page that is to look at only', async () => {
    const can = { run: false, level: false, mode: false, sweep: false, explain: true, tree: true };
    const { page } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ can });
        stub.answer('GET /api/baselines', SWEEP);
      },
    });
    for (const name of ['Load a sweep file…', 'Back to the first figures']) {
      const button = page.getByRole('button', { name });
      await button.waitFor();
      expect(await button.isDisabled(), name).toBe(true);
      expect(await button.getAttribute('title')).toBe('these figures cannot be replaced from this page');
    }
  });

  test('that is none is refused in red, and nothing changes', async () => {
    const { page, stub, allow } = await open();
    allow(REFUSED);
    const sentence = 'schema is kvlane-load.run/1, expected kvlane-load.sweep/1';
    stub.fail('PUT /api/baselines', 400, sentence);
    await page
      .locator('input[type=file]')
      .setInputFiles({ name: 'wrong.json', mimeType: 'application/json', buffer: Buffer.from('{}') });
    const error = page.locator('.source').getByTestId('complaint');
    await error.waitFor();
    expect(await error.textContent()).toBe(sentence);
    expect(await colourOf(error)).toBe(COLOURS.light.bad);
    expect(await rows(page)).toEqual(EXPECTED);
  });

  test('that is larger than the server takes is not sent', async () => {
    const { page, stub } = await open();
    const buffer = Buffer.alloc(8 * 1024 * 1024 + 1, 32);
    await page
      .locator('input[type=file]')
      .setInputFiles({ name: 'huge.json', mimeType: 'application/json', buffer });
    await page.getByText('huge.json has 8388609 bytes, expected 8388608 or fewer').waitFor();
    expect(stub.asked('PUT /api/baselines')).toHaveLength(0);
  });

  test('cannot be loaded while the socket is down', async () => {
    const { page, stub, allow } = await open();
    allow(SOCKET_LOST);
    stub.refuse(true);
    stub.kill();
    await expect.poll(() => page.getByRole('button', { name: 'Load a sweep file…' }).isDisabled()).toBe(true);
  });
});
