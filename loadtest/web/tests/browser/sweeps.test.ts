import { readFileSync } from 'node:fs';

import { describe, expect, test } from 'vitest';

import { colourOf, REFUSED, settle, useBrowser } from '../support/browser';
import { COLOURS, hello, sample, state, sweepProgress } from '../support/fixtures';
import { answerAll, cell, sweep, sweepLine, sweeps } from '../support/answers';
import { expectNotAsked } from '../support/polling';
import type { Stub } from '../support/stub';

const { open } = useBrowser();
const LIST = '#/sweeps';
const ONE = '#/sweeps/3';
const START = 'POST /api/sweeps';

/** The load does not run, so that a live sweep may. */
function idle(stub: Stub): void {
  answerAll(stub);
  stub.hello = hello({ state: state({ run: 'stopped' }) });
  stub.answer(START, { id: 3 });
}

describe('starting a sweep', () => {
  test('S-126: levels 60 to 180, round robin and ours', async () => {
    const { page } = await open({ at: LIST, before: idle });
    const levels = page.getByLabel('Levels, conversations at a time');
    await levels.waitFor();
    expect(await levels.inputValue()).toBe('60, 80, 100, 120, 140, 160, 180');
    const chosen = page.locator('input[type=checkbox]:checked');
    expect(await chosen.evaluateAll((boxes) => boxes.map((box) => (box as HTMLInputElement).value))).toEqual([
      'round_robin',
      'kvlane',
    ]);
    // Programs know modes by their ids, people by the server's labels.
    const modes = page.getByRole('group', { name: 'Modes, each under the same load' });
    expect(await modes.locator('label').allTextContents()).toEqual([
      'Round-robin',
      'Random',
      'Least loaded',
      'Power of two',
      'By session',
      'KV-aware, plain cost',
      'KV-aware',
      'KV-aware by session',
    ]);
  });

  test('a virtual sweep is posted as the form has it, and its page opens', async () => {
    const { page, stub } = await open({ at: LIST, before: idle });
    await page.getByLabel('Levels, conversations at a time').fill('120 60, 60');
    await page.getByLabel('Scenario').selectOption('think_8');
    await page.getByText('people think for eight seconds').waitFor();
    await page.getByLabel('Seeds').fill('2');
    await page.getByLabel('KV-aware by session').check();
    await page.getByRole('button', { name: 'Start sweep' }).dblclick();
    await page.getByRole('heading', { level: 2, name: 'Sweep 3, reference' }).waitFor();
    expect(stub.asked(START).map(({ body }) => body)).toEqual([
      {
        kind: 'virtual',
        scenario: 'think_8',
        levels: [60, 120],
        modes: ['round_robin', 'kvlane', 'kvlane_session'],
        seeds: 2,
      },
    ]);
    expect(new URL(page.url()).hash).toBe(ONE);
  });

  test('S-129, S-130, S-132: a live sweep has the recorded course, the same for both modes, and says how long it takes', async () => {
    const { page, stub } = await open({ at: LIST, before: idle });
    await page.getByLabel('Live').check();
    await page.getByLabel('Levels, conversations at a time').fill('60, 80');
    // Two modes: a minute to fill, then six for each level.
    expect(await page.getByTestId('sweep-takes').textContent()).toBe('takes 26 min 0 s');
    await page.getByRole('button', { name: 'Start sweep' }).click();
    await page.getByRole('heading', { level: 2, name: 'Sweep 3, reference' }).waitFor();
    expect(stub.asked(START)[0]?.body).toEqual({
      kind: 'live',
      levels: [60, 80],
      modes: ['round_robin', 'kvlane'],
      repeats: 1,
      warm_up_s: 60,
      window_s: 300,
      snapshots: 3,
      fill_s: 60,
    });
  });

  test('what is wrong is said in red, and nothing is sent', async () => {
    const { page, stub } = await open({ at: LIST, before: idle });
    const levels = page.getByLabel('Levels, conversations at a time');
    const start = page.getByRole('button', { name: 'Start sweep' });
    const complaint = page.getByTestId('complaint');
    for (const [text, sentence] of [
      ['60, many', 'level is many, expected a number from 1 to 10000'],
      ['0', 'level is 0, expected a number from 1 to 10000'],
      ['', 'no level is given, expected some such as 60, 80, 100'],
    ] as const) {
      await levels.fill(text);
      await start.click();
      expect(await complaint.textContent()).toBe(sentence);
      expect(await colourOf(complaint)).toBe(COLOURS.light.bad);
    }
    await levels.fill('60');
    expect(await complaint.count()).toBe(0);
    await page.getByLabel('Seeds').fill('');
    await start.click();
    expect(await complaint.textContent()).toBe('seeds is not a number, expected 1 to 64');
    await page.getByLabel('Seeds').fill('6');
    for (const mode of ['Round-robin', 'KV-aware']) await page.getByLabel(mode, { exact: true }).uncheck();
    await start.click();
    expect(await complaint.textContent()).toBe('no mode is chosen, expected one or more');
    expect(stub.asked(START).length).toBe(0);
  });

  test('a refusal is shown in the server’s words', async () => {
    const { page, stub, allow } = await open({ at: LIST, before: idle });
    allow(REFUSED);
    stub.fail(START, 409, 'sweep 2 is running');
    await page.getByRole('button', { name: 'Start sweep' }).click();
    const complaint = page.getByTestId('complaint');
    await complaint.waitFor();
    expect(await complaint.textContent()).toBe('sweep 2 is running');
    expect(await page.getByRole('button', { name: 'Start sweep' }).isEnabled()).toBe(true);
  });

  test('it cannot be started while one runs, while the load runs (live), without leave, or while the server is away', async () => {
    const { page, stub, allow } = await open({ at: LIST, before: idle });
    allow(/./);
    const start = page.getByRole('button', { name: 'Start sweep' });
    const why = page.getByTestId('sweep-takes');
    await start.waitFor();
    expect(await start.isEnabled()).toBe(true);

    await stub.say(state({ run: 'running' }));
    await page.getByText('load running').waitFor();
    await page.getByLabel('Live').check();
    expect(await start.isDisabled()).toBe(true);
    expect(await why.textContent()).toBe('stop the load first: a live sweep makes its own');

    await stub.say(state({ run: 'stopped' }));
    await page.getByText('load stopped').waitFor();
    await page.getByLabel('Virtual time').check();
    await stub.say(sweepProgress({ id: 2, state: 'running' }));
    await page.getByText('a sweep is running').waitFor();
    expect(await start.isDisabled()).toBe(true);
    await stub.say(sweepProgress({ id: 2, state: 'done' }));
    await page.getByText('a sweep is running').waitFor({ state: 'detached' });
    expect(await start.isEnabled()).toBe(true);

    // A live one runs the load, and says by the state that it does.
    await stub.say(state({ run: 'running', sweep: 2 }));
    await page.getByText('a sweep is running').waitFor();
    expect(await start.isDisabled()).toBe(true);
    expect(await page.getByLabel('Run beside the load').count()).toBe(0);

    const can = { run: true, level: true, mode: true, sweep: true, explain: true, tree: true };
    const stopped = state({ run: 'stopped' });
    await stub.say(hello({ can: { ...can, sweep: false }, state: stopped }));
    await page.getByText('sweeps cannot be started or stopped from this page').waitFor();
    expect(await start.isDisabled()).toBe(true);

    await page.getByLabel('Live').check();
    await stub.say(hello({ can: { ...can, run: false }, state: stopped }));
    await page.getByText('a live sweep needs a load that can be started from this page').waitFor();
    expect(await start.isDisabled()).toBe(true);
    await stub.say(hello({ can: { ...can, mode: false }, state: stopped }));
    await page.getByText('a live sweep needs a router whose routing can be changed').waitFor();
    expect(await start.isDisabled()).toBe(true);
    await page.getByLabel('Virtual time').check();
    expect(await start.isEnabled()).toBe(true);

    stub.refuse(true);
    stub.kill();
    await page.getByText('not connected to the server').waitFor();
    expect(await start.isDisabled()).toBe(true);
  });
});

describe('a virtual sweep beside a load that runs', () => {
  test('has to be asked for, and is not once the load has ended', async () => {
    const { page, stub } = await open({ at: LIST, before: idle });
    const start = page.getByRole('button', { name: 'Start sweep' });
    const beside = page.getByRole('checkbox', { name: 'Run beside the load (both will be slower)' });
    await start.waitFor();
    expect(await beside.count()).toBe(0);

    await stub.say(state({ run: 'running' }));
    await beside.waitFor();
    expect(await start.isDisabled()).toBe(true);
    expect(await page.getByTestId('sweep-takes').textContent()).toBe(
      'the load is running: stop it first, or run beside it',
    );
    await beside.check();
    expect(await start.isEnabled()).toBe(true);
    await page.getByLabel('Live').check();
    expect(await beside.count()).toBe(0);
    await page.getByLabel('Virtual time').check();
    await beside.check();
    await start.click();
    await page.getByTestId('sweep-facts').waitFor();
    expect(stub.asked(START)[0]?.body).toMatchObject({ kind: 'virtual', beside_load: true });

    await page.getByRole('link', { name: 'All sweeps' }).click();
    await beside.check();
    await stub.say(state({ run: 'stopped' }));
    await beside.waitFor({ state: 'detached' });
    await start.click();
    await expect.poll(() => stub.asked(START).length).toBe(2);
    expect(stub.asked(START)[1]?.body).not.toHaveProperty('beside_load');
  });
});

describe('sweeps that were started', () => {
  test('S-142: the newest first, and the one that runs as the feed has it', async () => {
    const { page, stub } = await open({
      at: LIST,
      before: (at) => {
        idle(at);
        const running = sweepLine(3, { kind: 'live', name: 'live', state: 'running', done: 1, left_s: 900 });
        at.answer('GET /api/sweeps', sweeps([sweepLine(2), running]));
      },
    });
    const rows = page.getByTestId('sweep');
    await rows.nth(1).waitFor();
    const texts = async (row: number) => rows.nth(row).locator('th, td').allTextContents();
    expect((await texts(0)).slice(0, 6)).toEqual([
      'Sweep 3',
      'live',
      'Live',
      'running',
      '1 of 21',
      'about 15 min 0 s',
    ]);
    const heads = await page.locator('thead th').allTextContents();
    expect(heads).toEqual(['Sweep', 'What', 'Clock', 'State', 'Done', 'Time left', 'Started']);
    expect((await texts(1)).slice(0, 6)).toEqual([
      'Sweep 2',
      'reference',
      'Virtual time',
      'done',
      '21 of 21',
      '—',
    ]);
    await stub.say(sweepProgress({ kind: 'live', done: 4, left_s: 61 }));
    await page.getByText('4 of 21', { exact: true }).waitFor();
    expect((await texts(0)).slice(4, 6)).toEqual(['4 of 21', 'about 1 min 1 s']);
    await rows.first().getByRole('link').click();
    await page.getByTestId('sweep-facts').waitFor();
    expect(new URL(page.url()).hash).toBe(ONE);
  });
});

describe('one sweep', () => {
  const running = () => {
    const done = sweep();
    const sets = (done.results?.sets ?? []).map((set) => ({ ...set, cells: [cell('round_robin', 60, 655)] }));
    return sweep({
      state: 'running',
      done: 1,
      left_s: 812,
      results: done.results && { ...done.results, sets },
      standings: [],
    });
  };

  test('S-142: progress, time left, early rows as cells come, then no more asking', async () => {
    const { page, stub } = await open({
      at: ONE,
      clock: true,
      before: (at) => {
        idle(at);
        at.answer('GET /api/sweeps/3', running());
      },
    });
    const bar = page.getByRole('progressbar');
    await bar.waitFor();
    expect(await bar.getAttribute('aria-valuetext')).toBe('1 of 21');
    expect(await page.getByTestId('left').textContent()).toBe('about 13 min 32 s left');
    expect(await page.getByTestId('cell').count()).toBe(1);

    await stub.say(sweepProgress({ now: 'KV-aware at 80, repeat 1: measuring' }));
    await settle(page);
    await page.getByText('KV-aware at 80, repeat 1: measuring').waitFor();
    expect(await bar.getAttribute('aria-valuenow')).toBe('7');
    expect(await page.getByTestId('left').textContent()).toBe('about 30 s left');

    stub.answer('GET /api/sweeps/3', sweep());
    await page.clock.runFor(3000);
    await settle(page);
    await page.getByTestId('cell').nth(20).waitFor();
    expect(await page.getByTestId('sweep-facts').locator('.badge').textContent()).toBe('done');
    expect(await bar.getAttribute('aria-valuetext')).toBe('21 of 21');
    expect(await page.getByTestId('left').count()).toBe(0);
    await expectNotAsked(page, stub, 'GET /api/sweeps/3');
  });

  test('it can be stopped, once', async () => {
    const { page, stub, allow } = await open({
      at: ONE,
      before: (at) => {
        idle(at);
        at.answer('GET /api/sweeps/3', running());
        at.fail('POST /api/sweeps/3/stop', 409, 'sweep 3 is over');
      },
    });
    allow(REFUSED);
    const stop = page.getByRole('button', { name: 'Stop sweep' });
    await stop.click();
    await page.getByText('sweep 3 is over').waitFor();
    expect(await stop.isEnabled()).toBe(true);
    stub.answer('POST /api/sweeps/3/stop', {});
    await stop.click();
    await page.getByText('sweep 3 is over').waitFor({ state: 'detached' });
    expect(await stop.isDisabled()).toBe(true);
    expect(stub.asked('POST /api/sweeps/3/stop').length).toBe(2);
  });

  test('it cannot be stopped on a page that is to look at only', async () => {
    const { page } = await open({
      at: ONE,
      before: (at) => {
        answerAll(at);
        const can = { run: false, level: false, mode: false, sweep: false, explain: true, tree: true };
        at.hello = hello({ can });
        at.answer('GET /api/sweeps/3', running());
      },
    });
    const stop = page.getByRole('button', { name: 'Stop sweep' });
    await stop.waitFor();
    expect(await stop.isDisabled()).toBe(true);
    expect(await stop.getAttribute('title')).toBe('sweeps cannot be started or stopped from this page');
  });

  test('figures are judged by the objective of the sweep', async () => {
    const { page } = await open({ at: ONE, before: idle });
    const rows = page.getByTestId('cell');
    await rows.nth(20).waitFor();
    const { good, warn, bad } = COLOURS.light;
    for (const [row, text, level, colour] of [
      [0, '655▲', 'red', bad],
      [1, '590●', 'yellow', warn],
      [2, '446', 'green', good],
      [20, '3,143▲', 'red', bad],
    ] as const) {
      const judged = rows.nth(row).locator('.judged').first();
      expect(await judged.textContent()).toBe(text);
      expect(await judged.getAttribute('data-level')).toBe(level);
      expect(await colourOf(judged)).toBe(colour);
    }
    const first = await rows.first().locator('th, td').allTextContents();
    expect(first.map((text) => text.trim())).toEqual([
      '60',
      'Round-robin',
      '328',
      '655▲',
      '26.9',
      '27.7',
      '2,263',
      '91.6%',
      '1',
    ]);
    const modes = (row: number) => rows.nth(row).locator('td').first().textContent();
    expect([await modes(1), await modes(2)]).toEqual(['KV-aware, plain cost ', 'KV-aware ']);
  });

  test('cells that do not count are left out of the mean and say why', async () => {
    const cells = [
      cell('kvlane', 60, 400),
      cell('kvlane', 60, 500),
      cell('kvlane', 60, 9000, { invalid: 'the generator was late' }),
      cell('kvlane', 80, 7000, { saturated: 'first tokens ten times late' }),
    ];
    const results = sweep().results;
    const sets = (results?.sets ?? []).map((set) => ({ ...set, cells }));
    const { page } = await open({
      at: ONE,
      before: (at) => {
        idle(at);
        at.answer('GET /api/sweeps/3', sweep({ results: results && { ...results, sets } }));
      },
    });
    const rows = page.getByTestId('cell');
    await rows.nth(1).waitFor();
    expect(await rows.first().locator('.judged').first().textContent()).toBe('450');
    expect(await rows.first().locator('td').last().textContent()).toBe('2');
    await rows.first().getByText('not counted: the generator was late').waitFor();
    await rows.nth(1).getByText('saturated: first tokens ten times late').waitFor();
  });

  test('the frontier: a curve per mode, recorded ones dashed, the objective, and how far each holds', async () => {
    const { page } = await open({ at: ONE, before: idle });
    const chart = page.getByRole('img', { name: 'SLO frontier' });
    await chart.waitFor();
    const names = await chart
      .locator('.curve')
      .evaluateAll((all) => all.map((one) => one.getAttribute('data-curve')));
    expect(names).toEqual(['Recorded round-robin', 'Recorded KV-aware', 'round_robin', 'dynamo', 'kvlane']);
    expect(await page.locator('.frontier__legend span').allTextContents()).toEqual([
      'Recorded round-robin',
      'Recorded KV-aware',
      'Round-robin',
      'KV-aware, plain cost',
      'KV-aware',
    ]);
    const dashes = await chart
      .locator('.curve polyline')
      .evaluateAll((all) => all.map((one) => getComputedStyle(one).strokeDasharray !== 'none'));
    expect(dashes).toEqual([true, true, false, false, false]);
    expect(await chart.locator('[data-slo]').getAttribute('data-slo')).toBe('600');
    await chart.getByText('SLO 600 ms').waitFor();
    expect(await chart.getByTestId('holds').allTextContents()).toEqual(['holds to 60', 'holds to 120']);
    expect(await page.getByTestId('standing').allTextContents()).toEqual([
      'Round-robin: objective missed already at c = 60',
      'KV-aware, plain cost: objective holds to c = 60',
      'KV-aware: objective holds to c = 120',
    ]);
    expect(await chart.locator('desc').textContent()).toContain('KV-aware: objective holds to c = 120');

    const place = async (mode: string, level: number) => {
      const box = await chart.locator(`[data-curve="${mode}"] [data-level-ms^="${level} "]`).boundingBox();
      return { x: (box?.x ?? 0) + (box?.width ?? 0) / 2, y: (box?.y ?? 0) + (box?.height ?? 0) / 2 };
    };
    const objective = await chart.locator('[data-slo] path').boundingBox();
    const [low, high, far] = [
      await place('kvlane', 60),
      await place('round_robin', 60),
      await place('kvlane', 180),
    ];
    expect(low.y).toBeGreaterThan(objective?.y ?? 0);
    expect(high.y).toBeLessThan(objective?.y ?? 0);
    expect(low.x).toBeCloseTo(high.x, 0);
    expect(far.x).toBeGreaterThan(low.x);
    // Far above the rest: drawn at the top, with its figure.
    await chart.locator('[data-curve=kvlane]').getByText('↑ 3,143').waitFor();
  });

  test('the load that runs now is a point of the frontier', async () => {
    const { page, stub } = await open({ at: ONE, before: idle });
    const chart = page.getByRole('img', { name: 'SLO frontier' });
    await chart.waitFor();
    expect(await chart.getByTestId('live-point').count()).toBe(0);
    await stub.say(state({ run: 'running', level: { concurrency: 100 } }));
    await stub.say(sample());
    await chart.getByTestId('live-point').waitFor();
    expect(await chart.getByTestId('live-point').textContent()).toBe('live 446 ms');
    await stub.say(hello({ speed: 8, state: state(), sample: sample() }));
    await chart.getByTestId('live-point').waitFor({ state: 'detached' });
  });

  test('without recorded figures there are none in the frontier', async () => {
    const { page } = await open({
      at: ONE,
      before: (at) => {
        idle(at);
        at.answer('GET /api/sweeps/3', sweep({ recorded: false }));
      },
    });
    const chart = page.getByRole('img', { name: 'SLO frontier' });
    await chart.waitFor();
    expect(await chart.locator('.curve').count()).toBe(3);
  });

  test('S-137: the report and its other forms are downloaded', async () => {
    const { page } = await open({
      at: ONE,
      before: (at) => {
        idle(at);
        at.answerBy('GET /api/sweeps/3/report.json', () => ({
          json: { schema: 'kvlane-load.sweep/1' },
          headers: { 'Content-Disposition': 'attachment; filename="kvlane-sweep-3.json"' },
        }));
      },
    });
    const links = page.locator('.downloads a');
    await links.first().waitFor();
    const addresses = await links.evaluateAll((all) =>
      all.map((one) => new URL((one as HTMLAnchorElement).href).pathname),
    );
    const files = [
      'report.html',
      'report.md',
      'report.csv',
      'report.json',
      'reference-rules.yml',
      'reference-lines.json',
    ];
    expect(addresses).toEqual(files.map((file) => `/api/sweeps/3/${file}`));
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: 'Results, to compare with (JSON)' }).click(),
    ]);
    expect(download.suggestedFilename()).toBe('kvlane-sweep-3.json');
    expect(readFileSync(await download.path(), 'utf8')).toContain('kvlane-load.sweep/1');
  });

  test('one that failed says why, and one that is not known too', async () => {
    const { page, stub, allow } = await open({
      at: ONE,
      before: (at) => {
        idle(at);
        at.answer(
          'GET /api/sweeps/3',
          sweep({ state: 'failed', error: 'the router went away', results: null }),
        );
        at.fail('GET /api/sweeps/9', 404, 'sweep 9 is not known');
      },
    });
    allow(REFUSED);
    const complaint = page.getByTestId('complaint');
    await complaint.waitFor();
    expect(await complaint.textContent()).toBe('the router went away');
    expect(await page.getByTestId('sweep-facts').locator('.badge').getAttribute('data-tone')).toBe('bad');
    expect(await page.locator('.downloads').count()).toBe(0);
    await page.goto(`${stub.url}#/sweeps/9`);
    await page.getByText('sweep 9 is not known').waitFor();
  });
});
