import { describe, expect, test } from 'vitest';

import { boxOf, colourOf, overhang, REFUSED, settle, useBrowser } from '../support/browser';
import { COLOURS, hello, T0 } from '../support/fixtures';
import { answerAll, node, tree, workedExample, WORKERS } from '../support/answers';
import { expectAskedEvery } from '../support/polling';

const { open } = useBrowser();
const AT = '#/kv-routing';
const TREE = 'GET /api/tree';
const EXPLAIN = 'POST /api/explain';

describe('KV Routing, drawn', () => {
  test('S-184: front end, blocks, radix tree, event plane and decision', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const drawing = page.getByRole('img', { name: 'KV-aware routing' });
    await drawing.waitFor();
    for (const box of ['Front end', 'Tokens to blocks', 'Radix tree', 'Event plane', 'Cost and decision']) {
      expect(await drawing.locator(`[data-box="${box}"]`).count(), box).toBe(1);
    }
    expect(await drawing.locator('[data-box="Event plane"]').textContent()).toContain('NATS');
    // A request from the front end to a worker by way of blocks, tree and decision; events back from workers to the tree.
    expect(await drawing.locator('.arrow-request').count()).toBe(4);
    expect(await drawing.locator('.arrow-events').count()).toBe(2);
  });

  test('S-015: the worked example costs 90, 30 and 99, and worker 2 is chosen', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const drawing = page.getByRole('img', { name: 'KV-aware routing' });
    await drawing.waitFor();
    expect(await drawing.locator('.cost-figure').allTextContents()).toEqual(['90', '30', '99']);
    expect(await drawing.locator('.cost-row-chosen .box-title').textContent()).toBe('Worker 2: least cost');
    expect(await drawing.locator('.box-chosen').getAttribute('data-box')).toBe('Worker 2');
    expect(await drawing.locator('.cost-row .box-line').allTextContents()).toEqual([
      '20 cached · 80 to compute + 10 in use',
      '75 cached · 25 to compute + 5 in use',
      '10 cached · 90 to compute + 9 in use',
    ]);
    const widths = [];
    for (const part of ['part-cached', 'part-compute', 'part-in-use']) {
      widths.push((await boxOf(drawing.locator(`.cost-row-chosen .${part}`))).width);
    }
    const [cached = 0, compute = 0, inUse = 0] = widths;
    expect(cached / compute).toBeCloseTo(75 / 25, 0);
    expect(compute / inUse).toBeCloseTo(25 / 5, 0);
  });
});

describe('the live tree', () => {
  test('S-184: prefixes beneath the one they continue, the largest first, and who holds how much', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const rows = page.getByTestId('tree-node');
    await rows.first().waitFor();
    const names = (await rows.locator('th').allTextContents()).map((text) => text.replace('└', '').trim());
    expect(names).toEqual([
      'log-structured storage blocks 1 to 116',
      'level 2: blocks 117 to 156',
      'level 2: blocks 117 to 143',
      'tide tables blocks 1 to 116',
    ]);
    const held = async (row: number) => rows.nth(row).locator('.tree__held span').allTextContents();
    expect(await held(0)).toEqual(['116', '116', '58']);
    expect(await held(1)).toEqual(['40', '0', '0']);
    expect(await held(2)).toEqual(['0', '27', '0']);
    expect(await held(3)).toEqual(['116', '0', '0']);
    const meter = rows.first().getByRole('meter', { name: `held by ${WORKERS[2]}` });
    const [track, bar] = [await boxOf(meter), await boxOf(meter.locator('div'))];
    expect(bar.width / track.width).toBeCloseTo(0.5, 1);
    await page.getByText('212 smaller nodes are left out.').waitFor();
    const facts = await page.getByTestId('index-facts').locator('dd').allTextContents();
    expect(facts).toEqual(['216', '9,120', '31', '1.4 MiB', '191,353', '182,233']);
  });

  test('S-184: it is looked at every 2 s, and evictions are told per second', async () => {
    const { page, stub } = await open({ at: AT, clock: true, before: answerAll });
    const rates = page.getByTestId('evictions').locator('td:last-child');
    await rates.first().waitFor();
    await expectAskedEvery(page, stub, TREE, 2000);
    const workers = tree().workers.map((worker, at) => ({
      ...worker,
      // The third engine began anew.
      evicted_blocks: at === 2 ? 5 : (worker.evicted_blocks ?? 0) + 50 * at,
    }));
    stub.answer(TREE, tree({ at: T0 + 4, workers }));
    await page.clock.runFor(2000);
    await settle(page);
    await page.getByText('12.5 /s').waitFor();
    expect(await rates.allTextContents()).toEqual(['0.0 /s', '12.5 /s', '—']);
    expect(await page.getByTestId('evictions').nth(1).locator('td').allTextContents()).toEqual([
      '9,121',
      '2,050',
      '12.5 /s',
    ]);
  });

  test('many nodes are shown on demand', async () => {
    const nodes = Array.from({ length: 30 }, (_, at) => node(at, null, { below: 1000 - at }));
    const { page } = await open({
      at: AT,
      before: (stub) => stub.answer(TREE, tree({ nodes, left_out: 0 })),
    });
    const rows = page.getByTestId('tree-node');
    await rows.first().waitFor();
    expect(await rows.count()).toBe(12);
    await page.getByRole('button', { name: 'Show all 30' }).click();
    expect(await rows.count()).toBe(30);
    expect(await page.getByText('smaller nodes').count()).toBe(0);
  });

  test('an empty tree says why', async () => {
    const { page, stub } = await open({
      at: AT,
      clock: true,
      before: (at) => at.answer(TREE, tree({ nodes: [], left_out: 0 })),
    });
    const note = page.getByTestId('tree-note');
    await note.waitFor();
    expect(await note.textContent()).toBe('The tree is empty: no engine has said that it stored anything.');
    stub.answer(
      TREE,
      tree({ nodes: [], left_out: 0, note: 'the index has 300,000 nodes, too many to draw' }),
    );
    await page.clock.runFor(2000);
    await settle(page);
    await page.getByText('the index has 300,000 nodes, too many to draw').waitFor();
  });

  test('more workers than fit are counted', async () => {
    const workers = Array.from({ length: 40 }, (_, at) => ({
      name: `w-${at}`,
      cached_blocks: 1,
      evicted_blocks: 0,
    }));
    const holders = workers.slice(0, 12).map(({ name }) => ({ worker: name, blocks: 116 }));
    const { page } = await open({
      at: AT,
      before: (stub) => stub.answer(TREE, tree({ nodes: [node(1, null, { holders })], workers })),
    });
    await page.getByText('12 of 40 workers').waitFor();
    expect(await overhang(page)).toBeLessThanOrEqual(0);
  });

  test('a router that is away is said so in red, and asked again', async () => {
    const { page, stub, allow } = await open({
      at: AT,
      clock: true,
      before: (at) => at.fail(TREE, 502, 'the router does not answer'),
    });
    allow(REFUSED);
    const complaint = page.getByTestId('complaint');
    await complaint.waitFor();
    expect(await complaint.textContent()).toBe('the router does not answer');
    expect(await colourOf(complaint)).toBe(COLOURS.light.bad);
    stub.answer(TREE, tree());
    await page.clock.runFor(2000);
    await settle(page);
    await complaint.waitFor({ state: 'detached' });
    await page.getByTestId('tree-node').first().waitFor();
  });

  test('without an administration nothing is asked, and the page says why', async () => {
    const can = { run: true, level: true, mode: false, sweep: false, explain: false, tree: false };
    const { page, stub } = await open({ at: AT, before: (at) => (at.hello = hello({ can })) });
    const why = 'is not available: the page was started without the router’s administration address';
    await page.getByText(`The router’s tree ${why} (--admin-url).`).waitFor();
    await page.getByText(`An explanation ${why} (--admin-url).`).waitFor();
    expect(await page.getByRole('textbox').count()).toBe(0);
    expect(stub.asked(TREE).length).toBe(0);
  });
});

describe('explaining a prompt', () => {
  test('S-184, S-015: a pasted prompt is asked about and every worker’s terms are shown', async () => {
    const { page, stub } = await open({ at: AT, before: answerAll });
    const explain = page.getByRole('button', { name: 'Explain' });
    expect(await explain.isDisabled()).toBe(true);
    await page.getByRole('textbox', { name: 'Prompt' }).fill('What is a log?');
    await explain.click();
    const explained = page.getByTestId('explained');
    await explained.waitFor();
    expect(stub.asked(EXPLAIN).map(({ body }) => body)).toEqual([{ prompt: 'What is a log?' }]);
    expect(await explained.getByRole('status').textContent()).toBe(
      'kvlane-worker-1: it holds 75 of 100 blocks and costs 30; the next best costs 90.',
    );
    expect(await explained.locator('.candidates__cost').allTextContents()).toEqual(['30', '90', '99']);
    expect(await explained.locator('[data-chosen=true]').count()).toBe(1);
    expect(await explained.locator('[data-chosen=true] th').textContent()).toContain('kvlane-worker-1');
    const bars = explained.locator('.cost-bar');
    const widths = [];
    for (const bar of await bars.all()) {
      let width = 0;
      for (const part of await bar.locator('.cost-bar__part').all()) width += (await boxOf(part)).width;
      widths.push(width);
    }
    expect((widths[0] ?? 0) / (widths[2] ?? 1)).toBeCloseTo(30 / 99, 1);
  });

  test('workers that are taken in turn are not said to win by their cost', async () => {
    const { page, stub } = await open({ at: AT, before: answerAll });
    stub.answer(EXPLAIN, { ...workedExample(), mode: 'round_robin' });
    await page.getByRole('textbox', { name: 'Prompt' }).fill('What is a log?');
    await page.getByRole('button', { name: 'Explain' }).click();
    const explained = page.getByTestId('explained');
    expect(await explained.getByRole('status').textContent()).toBe(
      'kvlane-worker-1: it holds 75 of 100 blocks and costs 30.',
    );
    await explained.getByText('This mode takes workers in turn; costs are shown for comparison.').waitFor();
  });

  test('a refusal is shown in the router’s words, and the prompt stays', async () => {
    const { page, stub, allow } = await open({ at: AT, before: answerAll });
    allow(REFUSED);
    stub.fail(EXPLAIN, 502, 'no ready worker serves model `x`');
    await page.getByRole('textbox', { name: 'Prompt' }).fill('Hello');
    await page.getByRole('button', { name: 'Explain' }).click();
    await page.getByText('no ready worker serves model').waitFor();
    expect(await page.getByRole('textbox', { name: 'Prompt' }).inputValue()).toBe('Hello');
    stub.answer(EXPLAIN, { ...workedExample(), chosen: null, candidates: [] });
    await page.getByRole('button', { name: 'Explain' }).click();
    await page.getByText('No worker could be chosen.').waitFor();
  });

  test('a prompt that is too long is not sent', async () => {
    const { page, stub } = await open({ at: AT, before: answerAll });
    await page.getByRole('textbox', { name: 'Prompt' }).fill('ä'.repeat(140_000));
    await page.getByRole('button', { name: 'Explain' }).click();
    await page.getByText('the prompt has 280000 bytes, expected 262144 at most').waitFor();
    expect(stub.asked(EXPLAIN).length).toBe(0);
  });

  test('nothing can be asked while the server is away', async () => {
    const { page, stub, allow } = await open({ at: AT, before: answerAll });
    allow(/./);
    await page.getByRole('textbox', { name: 'Prompt' }).fill('Hello');
    stub.refuse(true);
    stub.kill();
    await page.locator('[data-connection=down]').waitFor();
    expect(await page.getByRole('button', { name: 'Explain' }).isDisabled()).toBe(true);
  });
});
