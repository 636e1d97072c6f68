import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { colourOf, REFUSED, settle, SOCKET_LOST, useBrowser } from '../support/browser';
import { COLOURS, hello, mark, sample, state, T0 } from '../support/fixtures';

const browser = useBrowser();
const MODE = 'POST /api/mode';

const radio = (page: Page, name: 'Round-robin' | 'KV-aware') =>
  page.getByRole('radiogroup', { name: 'Routing' }).getByRole('radio', { name });

/** As a person does it: on the words. */
const choose = (page: Page, name: 'Round-robin' | 'KV-aware') => radio(page, name).click({ force: true });

describe('the A/B switch', () => {
  test('shows how requests are routed', async () => {
    const { page, stub } = await browser.open();
    expect([await radio(page, 'Round-robin').isChecked(), await radio(page, 'KV-aware').isChecked()]).toEqual(
      [false, true],
    );
    await stub.say(state({ mode: 'round_robin' }));
    await expect.poll(() => radio(page, 'Round-robin').isChecked()).toBe(true);
    await stub.say(state({ mode: 'least_loaded' }));
    await expect.poll(() => radio(page, 'Round-robin').isChecked()).toBe(false);
    expect(await radio(page, 'KV-aware').isChecked()).toBe(false);
  });

  test('flips the router, with its caches emptied first unless that is not wanted', async () => {
    const { page, stub } = await browser.open();
    await choose(page, 'Round-robin');
    await expect
      .poll(() => stub.asked(MODE).map(({ body }) => body))
      .toEqual([{ mode: 'round_robin', reset: true }]);
    await stub.say(state({ mode: 'round_robin' }));
    await expect.poll(() => radio(page, 'Round-robin').isChecked()).toBe(true);
    await page.getByRole('checkbox', { name: 'empty caches first' }).uncheck();
    await choose(page, 'KV-aware');
    await expect.poll(() => stub.asked(MODE)[1]?.body).toEqual({ mode: 'kv', reset: false });
  });

  test('is used by keyboard', async () => {
    const { page, stub } = await browser.open();
    await radio(page, 'KV-aware').focus();
    await page.keyboard.press('ArrowLeft');
    await expect.poll(() => stub.asked(MODE)[0]?.body).toEqual({ mode: 'round_robin', reset: true });
  });

  test('shows what is wanted while the router is asked, and asks once', async () => {
    const { page, stub } = await browser.open();
    stub.answerBy(MODE, () => 'never');
    await choose(page, 'Round-robin');
    await expect.poll(() => radio(page, 'Round-robin').isChecked()).toBe(true);
    await choose(page, 'KV-aware');
    await choose(page, 'Round-robin');
    await expect.poll(() => stub.asked(MODE).length).toBe(1);
  });

  test('does not jump back when the router is answered for before it is seen in its new mode', async () => {
    const { page, stub } = await browser.open();
    await choose(page, 'Round-robin');
    await expect.poll(() => stub.asked(MODE).length).toBe(1);
    await page.waitForTimeout(500);
    expect(await radio(page, 'Round-robin').isChecked()).toBe(true);
    // Still busy: nothing else is asked.
    await choose(page, 'KV-aware');
    expect(stub.asked(MODE)).toHaveLength(1);
    await stub.say(state({ mode: 'round_robin' }));
    await stub.say(sample(T0 + 1, { active: 59 }));
    await page.getByText('59 active').waitFor();
    expect(await radio(page, 'Round-robin').isChecked()).toBe(true);
    await choose(page, 'KV-aware');
    await expect.poll(() => stub.asked(MODE)[1]?.body).toEqual({ mode: 'kv', reset: true });
  });

  test('goes back when the router is not seen in its new mode for 15 s', async () => {
    const { page, stub } = await browser.open({ clock: true });
    await choose(page, 'Round-robin');
    await expect.poll(() => stub.asked(MODE).length).toBe(1);
    await stub.say(state());
    await page.clock.runFor(8000);
    await stub.say(state());
    await settle(page);
    await page.clock.runFor(6500);
    expect(await radio(page, 'Round-robin').isChecked()).toBe(true);
    await page.clock.runFor(1000);
    expect(await radio(page, 'KV-aware').isChecked()).toBe(true);
  });

  test('goes back and says why when the router says no', async () => {
    const { page, stub, allow } = await browser.open();
    allow(REFUSED);
    stub.fail(MODE, 502, 'the router does not answer');
    await choose(page, 'Round-robin');
    const error = page.getByTestId('error');
    await error.getByText('the router does not answer').waitFor();
    expect(await colourOf(error)).toBe(COLOURS.light.bad);
    await expect.poll(() => radio(page, 'KV-aware').isChecked()).toBe(true);
  });

  test.each(['cannot be changed', 'a sweep runs', 'the socket is down'])(
    'is disabled when %s',
    async (when) => {
      const { page, stub, allow } = await browser.open();
      allow(SOCKET_LOST);
      expect(await radio(page, 'Round-robin').isEnabled()).toBe(true);
      if (when === 'a sweep runs') await stub.say(state({ sweep: 3 }));
      if (when === 'cannot be changed') {
        const can = { run: true, level: true, mode: false, sweep: true, explain: true, tree: true };
        await stub.say(hello({ can }));
      }
      if (when === 'the socket is down') {
        stub.refuse(true);
        stub.kill();
      }
      await expect.poll(() => radio(page, 'Round-robin').isDisabled()).toBe(true);
      expect(await page.getByRole('checkbox', { name: 'empty caches first' }).isDisabled()).toBe(true);
    },
  );

  test('leaves a mark in both charts', async () => {
    const { page, stub } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ sample: sample(), marks: [mark('start', '', T0 - 30)] });
      },
    });
    await stub.say(sample(T0 + 1));
    const marks = (name: string) => page.getByTestId(`chart-${name}`).getAttribute('data-marks');
    await expect.poll(() => marks('TTFT')).toBe('1');
    await stub.say(mark('mode', 'round_robin', T0 + 1));
    await stub.say(mark('reset', 'caches', T0 + 1));
    await expect.poll(() => marks('TTFT')).toBe('2');
    expect(await marks('TPOT')).toBe('2');
    await stub.say(mark('reset', 'caches', T0 + 20));
    await expect.poll(() => marks('TTFT')).toBe('3');
    await stub.say(mark('level', '80', T0 + 21));
    await expect.poll(() => marks('TTFT')).toBe('4');
  });
});
