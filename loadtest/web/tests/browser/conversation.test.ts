import { describe, expect, test } from 'vitest';

import { boxOf, colourOf, REFUSED, settle, useBrowser } from '../support/browser';
import { COLOURS } from '../support/fixtures';
import { answerAll, conversation, turn } from '../support/answers';
import { expectAskedEvery, expectNotAsked } from '../support/polling';

const { open } = useBrowser();
const ONE = 'GET /api/conversations/17';
const AT = '#/conversations/17';

describe('one conversation', () => {
  test('S-180: topic, badge, turns and duration', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    await page.getByRole('heading', { level: 2, name: 'log-structured storage' }).waitFor();
    const facts = page.getByTestId('facts');
    expect(await facts.locator('span').allTextContents()).toEqual([
      'active',
      '3 of 5 turns',
      '41 s',
      'started 19:29:18',
    ]);
    expect(await colourOf(facts.locator('.badge'))).toBe(COLOURS.light.good);
  });

  test('S-180: it is asked for every 3 s while it is active, and not once it is over', async () => {
    const { page, stub } = await open({ at: AT, clock: true, before: answerAll });
    await page.getByTestId('facts').waitFor();
    await expectAskedEvery(page, stub, ONE, 3000);

    stub.answer(ONE, conversation({ status: 'completed', turns_done: 5 }));
    await page.clock.runFor(3000);
    await settle(page);
    await page.getByText('5 of 5 turns').waitFor();
    await expectNotAsked(page, stub, ONE);
  });

  test('a decision that is looked up after the end is asked for once more', async () => {
    const last = turn(2, { decision: null });
    const { page, stub } = await open({
      at: AT,
      clock: true,
      before: (at) => at.answer(ONE, conversation({ status: 'completed', turns: [turn(1), last] })),
    });
    await page.getByTestId('turn').first().waitFor();
    stub.answer(ONE, conversation({ status: 'completed', turns: [turn(1), turn(2)] }));
    await page.clock.runFor(3000);
    await settle(page);
    await page.getByTestId('turn').nth(1).locator('details').waitFor();
    await expectNotAsked(page, stub, ONE);
  });

  test('S-181: figures of a turn, and dashes for what is not known', async () => {
    const unknown = { ttft_ms: null, itl_ms: null, output_tokens: null, latency_s: null, worker: null };
    const turns = [turn(1), turn(2, { state: 'asking', ...unknown })];
    const { page } = await open({ at: AT, before: (stub) => stub.answer(ONE, conversation({ turns })) });
    const first = page.getByTestId('turn').first();
    await first.waitFor();
    const labels = first.locator('dt');
    const names = (await labels.allTextContents()).map((text) => text.split(' ')[0]);
    expect(names).toEqual(['TTFT', 'ITL', 'Tokens', 'Latency', 'Worker']);
    const values = ['412 ms', '28.1 ms', '833', '24.6 s', 'kvlane-worker-1'];
    expect(await first.locator('dd').allTextContents()).toEqual(values);
    const second = page.getByTestId('turn').nth(1);
    expect(await second.locator('dd').allTextContents()).toEqual(Array.from({ length: 5 }, () => '—'));
    await second.getByText('Waiting for the answer').waitFor();
  });

  test('S-181: the user speaks at the right, the assistant at the left', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const second = page.getByTestId('turn').nth(1);
    await second.waitFor();
    const [user, assistant] = [second.locator('[data-role=user]'), second.locator('[data-role=assistant]')];
    expect(await user.locator('.bubble__text').textContent()).toBe('What does turn 2 ask?');
    expect(await assistant.locator('.bubble__text').textContent()).toBe('This is what turn 2 answers.');
    const [card, right, left] = [await boxOf(second), await boxOf(user), await boxOf(assistant)];
    expect(card.x + card.width - (right.x + right.width)).toBeLessThan(40);
    expect(left.x - card.x).toBeLessThan(40);
    expect(right.x).toBeGreaterThan(left.x + left.width);
    expect(left.y).toBeGreaterThanOrEqual(right.y + right.height);
    const figures = await boxOf(second.locator('.turn-figures'));
    expect(right.y).toBeGreaterThanOrEqual(figures.y + figures.height);
  });

  test('what was cut short says so, and nobody is shown saying nothing', async () => {
    const unanswered = { assistant: '', ttft_ms: null, itl_ms: null, latency_s: null, output_tokens: null };
    const turns = [turn(1), turn(2, { ...unanswered, state: 'stopped', decision: null })];
    const { page } = await open({
      at: AT,
      before: (stub) => stub.answer(ONE, conversation({ status: 'stopped', turns_done: 1, turns })),
    });
    const second = page.getByTestId('turn').nth(1);
    await second.getByText('Not answered: the conversation was ended early').waitFor();
    expect(await second.locator('[data-role=user]').count()).toBe(1);
    expect(await second.locator('[data-role=assistant]').count()).toBe(0);
    expect(await page.getByTestId('facts').locator('.badge').getAttribute('title')).toBe('ended early');
  });

  test('S-182: bars are as long as the times to first token', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const bars = page.getByTestId('ttft-bar');
    await bars.nth(2).waitFor();
    const widths = [];
    for (const bar of await bars.all()) widths.push((await boxOf(bar)).width);
    const [first = 0, second = 0, third = 0] = widths;
    expect(second / first).toBeCloseTo(120 / 400, 2);
    expect(third / first).toBeCloseTo(80 / 400, 2);
    expect(await page.locator('.ttft-by-turn__ms').allTextContents()).toEqual(['400 ms', '120 ms', '80 ms']);
  });

  test('the cached share is a meter', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const second = page.getByTestId('turn').nth(1);
    const meter = second.getByRole('meter', { name: 'Cached share of the prompt' });
    await meter.waitFor();
    expect(await meter.getAttribute('aria-valuetext')).toBe('96%, 4,512 of 4,700 prompt tokens');
    await second.getByText('96% cached').waitFor();
    const [track, bar] = [await boxOf(meter), await boxOf(meter.locator('div'))];
    expect(bar.width / track.width).toBeCloseTo(0.96, 2);
  });

  test('why this worker: the chosen one first, its terms, and who could not be chosen', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const second = page.getByTestId('turn').nth(1);
    const table = second.getByRole('table');
    await second.getByText('Why this worker').waitFor();
    expect(await table.isVisible()).toBe(false);
    await second.getByText('Why this worker').focus();
    await page.keyboard.press('Enter');
    await table.waitFor();
    const heads = (await table.locator('thead th').allTextContents()).map((text) => text.trim());
    expect(heads).toEqual([
      'Worker',
      'Held blocks',
      'Prefill',
      'Decode',
      'Requests',
      'Waiting',
      'Home credit',
      'Cost',
    ]);
    const rows = table.getByTestId('candidate');
    const cells = async (row: number) =>
      (await rows.nth(row).locator('th, td').allTextContents()).map((text) => text.trim()).slice(0, 8);
    expect(await cells(0)).toEqual(['kvlane-worker-1 chosen', '75 of 100', '25', '5', '0', '0', '0', '30']);
    expect(await cells(1)).toEqual(['kvlane-worker-0', '20 of 100', '80', '10', '0', '0', '0', '90']);
    expect(await cells(2)).toEqual(['kvlane-worker-2', '10 of 100', '90', '9', '0', '0', '0', '99']);
    expect(await rows.locator('.badge').count()).toBe(1);
    const barred = await table.getByTestId('barred').textContent();
    expect(barred).toContain('kvlane-worker-3');
    expect(barred).toContain('not possible: takes no new requests');
    const why = await second.locator('details').textContent();
    expect(why).toContain('Costs are in blocks; the lowest wins.');
    expect(why).toContain('Request s-17-2');
  });

  test('why this worker, when they were taken in turn: not for its cost', async () => {
    const { decision } = turn(1);
    const turns = [turn(1, { decision: decision && { ...decision, mode: 'round_robin' } })];
    const { page } = await open({ at: AT, before: (stub) => stub.answer(ONE, conversation({ turns })) });
    await page.getByText('Why this worker').click();
    const why = await page.locator('.why').textContent();
    expect(why).toContain('This mode takes workers in turn; costs are shown for comparison.');
    expect(why).not.toContain('wins');
  });

  test('why stays open while the conversation goes on', async () => {
    const { page, stub } = await open({ at: AT, clock: true, before: answerAll });
    const second = page.getByTestId('turn').nth(1);
    await second.getByText('Why this worker').click();
    stub.answer(ONE, conversation({ duration_s: 50 }));
    await page.clock.runFor(3000);
    await settle(page);
    await page.getByText('50 s').waitFor();
    expect(await second.getByRole('table').isVisible()).toBe(true);
  });

  test('of a long text the beginning and the end are shown, more on demand, and what is missing', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    const user = page.getByTestId('turn').first().locator('[data-role=user]');
    await user.getByText('15,872 characters left out').waitFor();
    const text = user.locator('.bubble__text');
    const short = (await text.textContent()) ?? '';
    expect(short.length).toBeLessThan(700);
    expect(short).toContain('Explain the text above');
    await user.getByRole('button', { name: 'Show more' }).click();
    expect(((await text.textContent()) ?? '').length).toBeGreaterThan(3000);
    await user.getByRole('button', { name: 'Show less' }).click();
    expect(await text.textContent()).toBe(short);
  });

  test('a turn that failed is red and says what the server said', async () => {
    const failed = turn(1, {
      state: 'error',
      assistant: '',
      ttft_ms: null,
      error: 'http_503',
      complaint: 'no ready worker serves model `x`',
    });
    const { page } = await open({
      at: AT,
      before: (stub) => stub.answer(ONE, conversation({ turns: [failed] })),
    });
    const complaint = page.getByTestId('turn').getByTestId('complaint');
    await complaint.waitFor();
    expect(await complaint.textContent()).toBe('http_503: no ready worker serves model `x`');
    expect(await colourOf(complaint)).toBe(COLOURS.light.bad);
    expect(await page.getByTestId('turn').getByRole('meter').count()).toBe(0);
    expect(await page.locator('[data-role=assistant]').count()).toBe(0);
  });

  test('one that is forgotten says so, and is not asked for again', async () => {
    const { page, stub, allow } = await open({
      at: AT,
      clock: true,
      before: (at) => at.fail(ONE, 404, 'conversation 17 is not known, or forgotten'),
    });
    allow(REFUSED);
    await page.getByText('This conversation is no longer kept').waitFor();
    await expectNotAsked(page, stub, ONE);
    await page.getByRole('link', { name: 'All conversations' }).click();
    await settle(page);
    expect(new URL(page.url()).hash).toBe('#/conversations');
  });
});
