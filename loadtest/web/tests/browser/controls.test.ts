import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { BOOTH, boxOf, colourOf, LAPTOP, REFUSED, settle, SOCKET_LOST, useBrowser } from '../support/browser';
import { COLOURS, hello, sample, state } from '../support/fixtures';

const browser = useBrowser();

const button = (page: Page, name: 'Start' | 'Stop') => page.getByRole('button', { name, exact: true });
const connection = (page: Page) => page.getByTestId('connection').textContent();

/** Whether Start and Stop can be pressed. */
async function pressable(page: Page): Promise<[boolean, boolean]> {
  return [await button(page, 'Start').isEnabled(), await button(page, 'Stop').isEnabled()];
}

const EVERYTHING = { run: true, level: true, mode: true, sweep: true, explain: true, tree: true };
const NOTHING = { run: false, level: false, mode: false, sweep: false, explain: false, tree: false };

describe('S-146: without the socket nothing can be pressed', () => {
  test('before the server greets', async () => {
    const { page } = await browser.open({ before: (stub) => stub.silent(true), greeted: false });
    await button(page, 'Start').waitFor();
    expect(await pressable(page)).toEqual([false, false]);
    expect(await connection(page)).toBe('Connecting');
  });

  test('when it is killed, and again when it is back', async () => {
    const { page, stub, allow } = await browser.open();
    allow(SOCKET_LOST);
    expect(await pressable(page)).toEqual([false, true]);
    stub.refuse(true);
    stub.kill();
    await page.locator('[data-connection=down]').waitFor();
    expect(await pressable(page)).toEqual([false, false]);
    expect(await connection(page)).toBe('Disconnected, trying again');
    expect(await colourOf(page.getByTestId('connection').locator('strong'))).toBe(COLOURS.light.bad);
    expect(await button(page, 'Stop').getAttribute('title')).toBe('not connected to the server');
    stub.refuse(false);
    await page.locator('[data-connection=open]').waitFor();
    expect(await pressable(page)).toEqual([false, true]);
    expect(await connection(page)).toBe('Live, load running');
  });

  test('for as long as it is refused', async () => {
    const { page, stub, allow } = await browser.open({ clock: true });
    allow(SOCKET_LOST);
    stub.refuse(true);
    stub.kill();
    for (let second = 0; second < 20; second += 1) {
      await page.clock.runFor(1000);
      if (second > 0) expect(await pressable(page)).toEqual([false, false]);
    }
    expect(await connection(page)).toBe('Disconnected, trying again');
  });

  test('when the server is there and says nothing for 10 s', async () => {
    const { page, stub } = await browser.open({ clock: true });
    await stub.say(state());
    await settle(page);
    stub.silent(true);
    await page.clock.runFor(9500);
    expect(await pressable(page)).toEqual([false, true]);
    await page.clock.runFor(500);
    expect(await pressable(page)).toEqual([false, false]);
    expect(await connection(page)).toBe('Disconnected, trying again');
  });

  test('when the server says goodbye', async () => {
    const { page, stub, allow } = await browser.open();
    allow(SOCKET_LOST);
    stub.refuse(true);
    stub.closeSockets(1001);
    await page.locator('[data-connection=down]').waitFor();
    expect(await pressable(page)).toEqual([false, false]);
  });

  test.each([LAPTOP, BOOTH])('they are at the top right at $width', async (size) => {
    const { page } = await browser.open({ size });
    const stop = await boxOf(button(page, 'Stop'));
    const start = await boxOf(button(page, 'Start'));
    expect(size.width - (stop.x + stop.width)).toBeLessThanOrEqual(48);
    expect(stop.y).toBeLessThan(140);
    expect(start.y).toBe(stop.y);
    expect(start.x + start.width).toBeLessThan(stop.x);
  });
});

describe('S-147: only what would be done can be pressed', () => {
  const MATRIX = [
    ['stopped', null, [true, false]],
    ['starting', null, [false, false]],
    ['running', null, [false, true]],
    ['stopping', null, [false, false]],
    ['running', 3, [false, false]],
    ['stopped', 3, [false, false]],
  ] as const;

  test('in every state of the load and of a sweep', async () => {
    const { page, stub } = await browser.open();
    for (const [run, sweep, expected] of MATRIX) {
      await stub.say(state({ run, sweep }));
      await page.getByText(`load ${run}`).waitFor();
      const why = sweep === null ? null : 'a sweep is running';
      await expect.poll(() => button(page, 'Start').getAttribute('title')).toBe(why);
      expect(await pressable(page), `${run}, sweep ${sweep}`).toEqual(expected);
    }
  });

  test('while a sweep has the engines neither level nor routing can be changed, and its figures are shown', async () => {
    const { page, stub } = await browser.open();
    await stub.say(state({ sweep: 3, level: { concurrency: 120 } } as never));
    await stub.say(sample());
    await expect.poll(() => page.getByRole('slider').inputValue()).toBe('120');
    expect(await pressable(page)).toEqual([false, false]);
    expect(await page.getByRole('slider').isDisabled()).toBe(true);
    expect(await page.getByRole('radio', { name: 'Round-robin' }).isDisabled()).toBe(true);
    expect(await page.getByTestId('kpi-value').first().textContent()).toBe('2.57');
    await page.getByText('recorded at 120 conversations').waitFor();
  });

  test('a load that is not this page’s own cannot be touched', async () => {
    const { page } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ can: { ...EVERYTHING, run: false } });
      },
    });
    expect(await pressable(page)).toEqual([false, false]);
    for (const name of ['Start', 'Stop'] as const) {
      expect(await button(page, name).getAttribute('title')).toBe(
        'this load cannot be changed from this page',
      );
    }
  });

  test('a page to look at only has nothing to press but its own parts', async () => {
    const { page } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ can: NOTHING });
      },
    });
    expect(await pressable(page)).toEqual([false, false]);
    expect(await page.getByRole('slider').isDisabled()).toBe(true);
    expect(await page.getByRole('radio', { name: 'Round-robin' }).isDisabled()).toBe(true);
    const load = page.getByRole('button', { name: 'Load a sweep file…' });
    await load.waitFor();
    expect(await load.isDisabled()).toBe(true);
    expect(await load.getAttribute('title')).toBe('these figures cannot be replaced from this page');
  });
});

describe('S-123: the load is started and stopped from here', () => {
  test('Start is sent once, however often it is clicked', async () => {
    const { page, stub } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ state: state({ run: 'stopped' }) });
      },
    });
    await button(page, 'Start').dblclick();
    await expect.poll(() => stub.asked('POST /api/run/start').length).toBe(1);
    expect(await pressable(page)).toEqual([false, false]);
    await stub.say(state({ run: 'running' }));
    await expect.poll(() => pressable(page)).toEqual([false, true]);
    expect(stub.asked('POST /api/run/start').map(({ body }) => body)).toEqual([{}]);
  });

  test('Stop is sent', async () => {
    const { page, stub } = await browser.open();
    await button(page, 'Stop').click();
    await expect.poll(() => stub.asked('POST /api/run/stop').length).toBe(1);
  });

  test('what the server refuses is said in red, and can be put away', async () => {
    const { page, stub, allow } = await browser.open({ clock: true });
    allow(REFUSED);
    stub.fail('POST /api/run/stop', 409, 'the load is not running');
    await button(page, 'Stop').click();
    const error = page.getByRole('alert').getByTestId('error');
    await expect
      .poll(async () => {
        await settle(page);
        return error.count();
      })
      .toBe(1);
    expect(await error.locator('span').textContent()).toBe('the load is not running');
    expect(await colourOf(error)).toBe(COLOURS.light.bad);
    expect(await pressable(page)).toEqual([false, true]);
    await error.getByRole('button', { name: 'Dismiss' }).click();
    await settle(page);
    expect(await error.count()).toBe(0);
  });

  test('what went wrong with the load is said too', async () => {
    const { page, stub } = await browser.open();
    await stub.say(state({ run: 'stopped', error: 'the target does not answer' }));
    await page.getByTestId('error').getByText('the target does not answer').waitFor();
  });
});
