import { describe, expect, test } from 'vitest';

import { boxOf, colourOf, REFUSED, settle, useBrowser } from '../support/browser';
import { COLOURS } from '../support/fixtures';
import { answerAll, conversations, line } from '../support/answers';
import { expectAskedEvery, expectNotAsked } from '../support/polling';

const { open } = useBrowser();
const LIST = 'GET /api/conversations';
const AT = '#/conversations';

describe('the list of conversations', () => {
  test('S-176: it is asked for at once and then every 5 s, and not after the page is left', async () => {
    const { page, stub } = await open({ at: AT, clock: true, before: answerAll });
    await page.getByTestId('conversation').first().waitFor();
    expect(stub.asked(LIST)[0]?.query).toBe('?limit=200');
    await expectAskedEvery(page, stub, LIST, 5000);

    await page.getByRole('link', { name: 'Features' }).click();
    await page.locator('[data-page=features]').waitFor();
    // A page that has to be fetched is not shown sooner than a moment after its placeholder.
    await page.clock.runFor(1000);
    await page.getByRole('heading', { level: 2, name: 'Features' }).waitFor();
    await expectNotAsked(page, stub, LIST);
  });

  test('S-176: what came meanwhile is shown', async () => {
    const { page, stub } = await open({ at: AT, clock: true, before: answerAll });
    await page.getByTestId('conversation').first().waitFor();
    stub.answer(LIST, conversations([line(18, { topic: 'lighthouses' })]));
    await page.clock.runFor(5000);
    await settle(page);
    await page.getByRole('link', { name: 'lighthouses' }).waitFor();
    expect(await page.getByTestId('conversation').count()).toBe(1);
  });

  test('S-177: columns, and a word and a colour for each status', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    await page.getByTestId('conversation').first().waitFor();
    expect(await page.locator('thead th').allTextContents()).toEqual([
      'Status',
      'Topic',
      'Turns',
      'Duration',
      'Started',
    ]);
    const rows = page.getByTestId('conversation');
    const { good, idle, bad } = COLOURS.light;
    for (const [row, word, colour, title] of [
      [0, 'active', good, null],
      [1, 'completed', idle, null],
      [2, 'error', bad, null],
      [3, 'completed', idle, 'ended early'],
    ] as const) {
      const badge = rows.nth(row).locator('.badge');
      expect(await badge.textContent()).toBe(word);
      expect(await colourOf(badge)).toBe(colour);
      expect(await badge.getAttribute('title')).toBe(title);
    }
    expect(await rows.nth(1).locator('td, th').allTextContents()).toEqual([
      'completed',
      'tide tables',
      '4 of 4',
      '2 min 5 s',
      '19:29:18',
    ]);
  });

  test('S-178: turns are those completed, of those planned', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    expect(await page.getByTestId('conversation').first().locator('td').nth(1).textContent()).toBe('2 of 5');
  });

  test('S-179: a click anywhere on the row opens the conversation, and so does Enter on its link', async () => {
    const { page } = await open({ at: AT, before: answerAll });
    await page.getByTestId('conversation').first().locator('td').last().click();
    await page.getByTestId('facts').waitFor();
    expect(new URL(page.url()).hash).toBe('#/conversations/17');
    await page.goBack();
    await page.getByRole('link', { name: 'log-structured storage' }).focus();
    await page.keyboard.press('Enter');
    await page.getByTestId('facts').waitFor();
    expect(new URL(page.url()).hash).toBe('#/conversations/17');
  });

  test('S-179: a link that is opened in a tab of its own leaves this one where it is', async () => {
    const { page, context } = await open({ at: AT, before: answerAll });
    const link = page.getByRole('link', { name: 'log-structured storage' });
    for (const modifier of ['Control', 'Shift'] as const) {
      const [other] = await Promise.all([
        context.waitForEvent('page'),
        link.click({ modifiers: [modifier] }),
      ]);
      await other.waitForURL('**/#/conversations/17');
      expect(new URL(page.url()).hash, modifier).toBe(AT);
      await other.close();
    }
    await link.click();
    await page.getByTestId('facts').waitFor();
  });

  test('an empty list says what to do', async () => {
    const { page } = await open({ at: AT, before: (stub) => stub.answer(LIST, conversations([])) });
    await page.getByText('No conversations yet').waitFor();
    expect(await page.locator('table').count()).toBe(0);
  });

  test('an answer that fails is shown red, and what was known stays until the next one', async () => {
    const { page, stub, allow } = await open({ at: AT, clock: true, before: answerAll });
    allow(REFUSED);
    await page.getByTestId('conversation').first().waitFor();
    stub.fail(LIST, 503, 'no load is running yet');
    await page.clock.runFor(5000);
    await settle(page);
    const complaint = page.getByTestId('complaint');
    await complaint.waitFor();
    expect(await complaint.textContent()).toBe('no load is running yet');
    expect(await colourOf(complaint)).toBe(COLOURS.light.bad);
    expect(await page.getByTestId('conversation').count()).toBe(4);
    stub.answer(LIST, conversations());
    await page.clock.runFor(5000);
    await settle(page);
    await complaint.waitFor({ state: 'detached' });
  });

  test('the table keeps within the page', async () => {
    const topic = 'a topic that goes on and on '.repeat(12);
    const { page } = await open({
      at: AT,
      before: (stub) => stub.answer(LIST, conversations([line(1, { topic })])),
    });
    const row = page.getByTestId('conversation');
    await row.waitFor();
    const started = await boxOf(row.locator('td').last());
    expect(started.x + started.width).toBeLessThanOrEqual(1280);
  });
});
