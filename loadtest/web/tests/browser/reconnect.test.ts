import { describe, expect, test } from 'vitest';

import { colourOf, settle, SOCKET_LOST, useBrowser } from '../support/browser';
import { COLOURS, hello, history, sample, T0, workers } from '../support/fixtures';

const browser = useBrowser();

/** The times in the table that is read aloud: what the chart holds at its end. */
const LATEST = 'figure:first-of-type table th';

describe('a feed that was lost', () => {
  test('is tried for after 0.5, 1, 2, 4 and 8 seconds, a fifth more or less', async () => {
    const { page, stub, allow } = await browser.open({ clock: true });
    allow(SOCKET_LOST);
    stub.silent(true);
    const opened: number[] = [];
    let now = 0;
    stub.kill();
    // A socket that is taken and cut again without a word counts as another failure.
    await settle(page);
    for (let steps = 0; steps < 260 && opened.length < 5; steps += 1) {
      const before = stub.greeted;
      await page.clock.runFor(100);
      now += 100;
      await new Promise((resolve) => setTimeout(resolve, 15));
      if (stub.greeted > before) {
        opened.push(now);
        now = 0;
        stub.kill();
        await settle(page);
      }
    }
    const expected = [500, 1000, 2000, 4000, 8000];
    expect(opened).toHaveLength(expected.length);
    for (const [at, wait] of expected.entries()) {
      expect(opened[at], `wait ${at}`).toBeGreaterThanOrEqual(wait * 0.8 - 150);
      expect(opened[at], `wait ${at}`).toBeLessThanOrEqual(wait * 1.2 + 150);
    }
  });

  test('comes back at once when the network does', async () => {
    const { page, stub, allow } = await browser.open({ clock: true });
    allow(SOCKET_LOST);
    stub.kill();
    await settle(page);
    await page.locator('[data-connection=down]').waitFor();
    const before = stub.greeted;
    await page.evaluate(() => window.dispatchEvent(new Event('online')));
    await expect.poll(() => stub.greeted).toBe(before + 1);
    await settle(page);
    expect(await page.locator('[data-connection=open]').count()).toBe(1);
  });

  test('of the same server goes on: no moment is there twice', async () => {
    const { page, stub, allow } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ history: history(3), sample: sample() });
      },
    });
    allow(SOCKET_LOST);
    await stub.say(sample(T0 + 1));
    await expect.poll(() => page.locator(LATEST).count()).toBe(4);
    stub.hello = hello({ history: history(4, T0 + 1), sample: sample(T0 + 1) });
    stub.kill();
    await expect.poll(() => stub.greeted).toBe(2);
    await stub.say(sample(T0 + 2));
    await expect
      .poll(() => page.locator(LATEST).allTextContents())
      .toEqual(['19:29:58', '19:29:59', '19:30:00', '19:30:01', '19:30:02']);
  });

  test('of another server begins anew, and what is compared with is asked for again', async () => {
    const { page, stub, allow } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ history: history(5), sample: sample() });
      },
    });
    allow(SOCKET_LOST);
    await expect.poll(() => page.locator(LATEST).count()).toBe(5);
    await expect.poll(() => stub.asked('GET /api/baselines').length).toBe(1);
    stub.hello = hello({ instance: 'another' });
    stub.kill();
    await expect.poll(() => page.locator(LATEST).count()).toBe(0);
    await expect.poll(() => stub.asked('GET /api/baselines').length).toBe(2);
    expect(await page.getByTestId('no-answers').count()).toBe(1);
  });

  test('leaves its figures where they are, dimmed and with their age', async () => {
    const { page, stub, allow } = await browser.open({
      clock: true,
      before: (stub) => {
        stub.hello = hello({ sample: sample(), workers: workers() });
      },
    });
    allow(SOCKET_LOST);
    const kpis = page.getByTestId('kpis');
    const live = page.locator('.live-table td.live').first();
    expect(await colourOf(live)).toBe(COLOURS.light.ink);
    expect(await kpis.getAttribute('data-stale')).toBe('false');
    await stub.say(sample(T0 + 1, { requests: 777 }));
    await settle(page);
    stub.refuse(true);
    stub.kill();
    await settle(page);
    await page.clock.runFor(12_000);
    expect(await kpis.getAttribute('data-stale')).toBe('true');
    expect(await page.getByTestId('age').textContent()).toMatch(/^as of 1[23] s ago$/);
    expect(await page.getByTestId('kpi-value').nth(1).textContent()).toBe('777');
    expect(await colourOf(page.getByTestId('kpi-value').nth(1))).toBe(COLOURS.light.quiet);
    expect(await live.textContent()).toBe('249');
    expect(await colourOf(live)).toBe(COLOURS.light.quiet);
    const cards = page.locator('.workers');
    expect(await cards.getAttribute('data-stale')).toBe('true');
    expect(await colourOf(cards.locator('dd').first())).toBe(COLOURS.light.quiet);
    const chart = page.getByTestId('chart-TTFT').locator('.chart__canvas');
    expect(await chart.evaluate((canvas) => getComputedStyle(canvas).opacity)).toBe('0.5');
  });
});
