import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { boxOf, REFUSED, settle, SOCKET_LOST, useBrowser, type Opening } from '../support/browser';
import { hello, sample, state } from '../support/fixtures';

const browser = useBrowser();
const LOAD = 'POST /api/load';

const slider = (page: Page) => page.getByRole('slider', { name: 'Conversations at a time' });
const rrTtft = (page: Page) => page.locator('.live-table tbody tr').first().locator('td').last();
const value = async (page: Page) => Number(await slider(page).inputValue());

async function open(opening: Opening = {}) {
  const visit = await browser.open({
    before: (stub) => {
      stub.hello = hello({ sample: sample() });
    },
    ...opening,
  });
  await visit.page.locator('.benchmark').waitFor();
  return visit;
}

/** Moves it as a hand does: an input event for each value. */
async function drag(page: Page, values: number[], everyMs = 0): Promise<void> {
  for (const [at, to] of values.entries()) {
    if (at > 0 && everyMs > 0) await page.clock.runFor(everyMs);
    await slider(page).evaluate((input: HTMLInputElement, next) => {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')?.set?.call(input, String(next));
      input.dispatchEvent(new Event('input', { bubbles: true }));
    }, to);
  }
}

describe('S-153: the slider', () => {
  test('goes from 60 to 180 in steps of 20', async () => {
    const { page } = await open();
    const attributes = await slider(page).evaluate((input: HTMLInputElement) => [
      input.min,
      input.max,
      input.step,
      input.value,
    ]);
    expect(attributes).toEqual(['60', '180', '20', '60']);
    expect(await slider(page).getAttribute('aria-valuetext')).toBe('60 conversations');
  });

  test('changes the load and the row it is compared with', async () => {
    const { page, stub } = await open();
    expect(await rrTtft(page).textContent()).toBe('655');
    await slider(page).focus();
    await page.keyboard.press('ArrowRight');
    expect(await slider(page).getAttribute('aria-valuetext')).toBe('80 conversations');
    await expect.poll(() => rrTtft(page).textContent()).toBe('637');
    await expect.poll(() => stub.asked(LOAD).map(({ body }) => body)).toEqual([{ concurrency: 80 }]);
    await stub.say(state({ level: { concurrency: 80 } } as never));
    await expect.poll(() => value(page)).toBe(80);
  });

  test('is as wide as the server has it', async () => {
    const { page } = await open({
      before: (stub) => {
        stub.hello = hello({
          slider: { min: 8, max: 180, step: 4 },
          state: state({ level: { concurrency: 8 } } as never),
        });
      },
    });
    expect([await slider(page).getAttribute('min'), await value(page)]).toEqual(['8', 8]);
  });
});

describe('S-154: the slider waits until the hand rests', () => {
  test('five moves within 250 ms are sent once, 300 ms after the last', async () => {
    const { page, stub } = await open({ clock: true });
    await drag(page, [80, 100, 120, 140, 160], 60);
    expect(stub.asked(LOAD)).toHaveLength(0);
    await page.clock.runFor(299);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(stub.asked(LOAD)).toHaveLength(0);
    await page.clock.runFor(1);
    await expect.poll(() => stub.asked(LOAD).length).toBe(1);
    await page.clock.runFor(3000);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(stub.asked(LOAD).map(({ body }) => body)).toEqual([{ concurrency: 160 }]);
  });

  test('the load runs on: nothing is stopped or started', async () => {
    const { page, stub } = await open({ clock: true });
    await drag(page, [80, 120]);
    await page.clock.runFor(300);
    await expect.poll(() => stub.asked(LOAD).length).toBe(1);
    await stub.say(state({ level: { concurrency: 120 } } as never));
    await settle(page);
    expect(await page.getByTestId('connection').textContent()).toBe('Live, load running');
    expect(await page.getByRole('button', { name: 'Stop' }).isEnabled()).toBe(true);
    expect(stub.asked('POST /api/run/stop')).toHaveLength(0);
    expect(stub.asked('POST /api/run/start')).toHaveLength(0);
  });

  test('what was not sent is forgotten with the page', async () => {
    const { page, stub } = await open({ clock: true });
    await drag(page, [80]);
    await page.getByRole('link', { name: 'Features' }).click();
    await page.locator('main[data-page=features]').waitFor();
    await page.clock.runFor(1000);
    expect(stub.asked(LOAD)).toHaveLength(0);
  });
});

describe('the level', () => {
  test('that is set from elsewhere moves the slider', async () => {
    const { page, stub } = await open();
    await stub.say(state({ level: { concurrency: 140 } } as never));
    await expect.poll(() => value(page)).toBe(140);
    await expect.poll(() => rrTtft(page).textContent()).toBe('643');
  });

  test('does not pull it out of a hand', async () => {
    const { page, stub } = await open();
    const box = await boxOf(slider(page));
    const middle = box.y + box.height / 2;
    await page.mouse.move(box.x + 8, middle);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width / 2, middle);
    await expect.poll(() => stub.asked(LOAD).length).toBe(1);
    expect(await value(page)).toBe(120);
    await stub.say(state({ level: { concurrency: 160 } } as never));
    await stub.say(sample(undefined, { active: 99 }));
    await expect.poll(() => page.getByTestId('active').textContent()).toBe('99 active');
    expect(await value(page)).toBe(120);
    // What was set meanwhile is shown as soon as the hand lets go.
    await page.mouse.up();
    await expect.poll(() => value(page)).toBe(160);
    await stub.say(state({ level: { concurrency: 80 } } as never));
    await expect.poll(() => value(page)).toBe(80);
  });

  test('is followed again when the hand is taken away without a word', async () => {
    const { page, stub } = await open();
    await slider(page).dispatchEvent('pointerdown');
    await drag(page, [120]);
    await expect.poll(() => stub.asked(LOAD).length).toBe(1);
    await stub.say(state({ level: { concurrency: 160 } } as never));
    await stub.say(sample(undefined, { active: 99 }));
    await expect.poll(() => page.getByTestId('active').textContent()).toBe('99 active');
    expect(await value(page)).toBe(120);
    await slider(page).dispatchEvent('lostpointercapture');
    await expect.poll(() => value(page)).toBe(160);
  });

  test('that is not known is not made up', async () => {
    const { page } = await open({
      before: (stub) => {
        stub.hello = hello({ sample: sample(), state: state({ level: null }) });
      },
    });
    expect(await page.locator('.slider__value').textContent()).toBe('—');
    expect(await slider(page).getAttribute('aria-valuetext')).toBe('not known');
  });

  test('that was refused late does not take back what was picked since', async () => {
    const { page, stub, allow } = await open();
    allow(REFUSED);
    let refuse = () => {};
    await page.route('**/api/load', async (route) => {
      if (route.request().postDataJSON().concurrency !== 80) return route.fulfill({ json: {} });
      await new Promise<void>((resolve) => (refuse = resolve));
      return route.fulfill({ status: 409, json: { error: { message: 'not now' } } });
    });
    await drag(page, [80]);
    await page.waitForRequest('**/api/load');
    await drag(page, [140]);
    await page.waitForRequest('**/api/load');
    refuse();
    await page.getByTestId('error').getByText('not now').waitFor();
    expect(await value(page)).toBe(140);
    expect(stub.asked(LOAD)).toHaveLength(0);
  });

  test('that is refused goes back, and the reason is said', async () => {
    const { page, stub, allow } = await open();
    allow(REFUSED);
    stub.fail(LOAD, 400, 'concurrency is 80, expected 60 or fewer here');
    await slider(page).focus();
    await page.keyboard.press('ArrowRight');
    await page.getByTestId('error').getByText('concurrency is 80, expected 60 or fewer here').waitFor();
    expect(await value(page)).toBe(60);
  });

  test.each([
    ['the socket is down', null, 'not connected to the server'],
    ['a sweep runs', state({ sweep: 3 }), 'a sweep is running'],
  ])('cannot be set when %s', async (_, said, why) => {
    const { page, stub, allow } = await open();
    allow(SOCKET_LOST);
    expect(await slider(page).isEnabled()).toBe(true);
    if (said) await stub.say(said);
    else {
      stub.refuse(true);
      stub.kill();
    }
    await expect.poll(() => slider(page).isDisabled()).toBe(true);
    expect(await slider(page).getAttribute('title')).toBe(why);
  });
});
