import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { BOOTH, boxOf, LAPTOP, settle, useBrowser } from '../support/browser';
import { COLOURS, hello, history, mark, sample, T0 } from '../support/fixtures';
import type { Stub } from '../support/stub';

const browser = useBrowser();

const chart = (page: Page, name: 'TTFT' | 'TPOT') => page.getByTestId(`chart-${name}`);

function fiveMinutes(stub: Stub): void {
  stub.hello = hello({ history: history(300), sample: sample() });
}

type Drawn = { pixels: number; top: number; bottom: number; widestGap: number; width: number };

/** Where on its canvas a chart has this very colour. */
async function drawn(page: Page, name: 'TTFT' | 'TPOT', colour: string): Promise<Drawn> {
  return chart(page, name)
    .locator('canvas')
    .evaluate((canvas: HTMLCanvasElement, wanted) => {
      const [red, green, blue] = (wanted.match(/\d+/g) ?? []).map(Number);
      const data = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height).data;
      const found = { pixels: 0, top: Infinity, bottom: -Infinity };
      const columns = new Set<number>();
      for (let at = 0; at < data.length; at += 4) {
        if (data[at] !== red || data[at + 1] !== green || data[at + 2] !== blue || data[at + 3] !== 255)
          continue;
        const [x, y] = [(at / 4) % canvas.width, Math.floor(at / 4 / canvas.width)];
        found.pixels += 1;
        found.top = Math.min(found.top, y);
        found.bottom = Math.max(found.bottom, y);
        columns.add(x);
      }
      const across = [...columns].sort((one, other) => one - other);
      const gaps = across.slice(1).map((x, at) => x - (across[at] ?? x));
      return { ...found, widestGap: Math.max(0, ...gaps), width: canvas.width };
    }, colour);
}

describe('charts', () => {
  test('draw p50 below p95, both below the objective', async () => {
    const { page } = await browser.open({ before: fiveMinutes });
    await expect.poll(async () => (await drawn(page, 'TTFT', COLOURS.light.p95)).pixels).toBeGreaterThan(200);
    const p50 = await drawn(page, 'TTFT', COLOURS.light.p50);
    const p95 = await drawn(page, 'TTFT', COLOURS.light.p95);
    const slo = await drawn(page, 'TTFT', COLOURS.light.bad);
    expect(p50.pixels).toBeGreaterThan(200);
    expect(p50.top).toBeGreaterThan(p95.bottom);
    expect(slo.pixels).toBeGreaterThan(100);
    expect(slo.bottom).toBeLessThan(p95.top);
  });

  test('draw what comes', async () => {
    const { page, stub } = await browser.open();
    expect((await drawn(page, 'TTFT', COLOURS.light.p95)).pixels).toBe(0);
    for (let t = 0; t < 60; t += 1) await stub.say(sample(T0 + t));
    await expect.poll(async () => (await drawn(page, 'TTFT', COLOURS.light.p95)).pixels).toBeGreaterThan(20);
    await expect.poll(async () => (await drawn(page, 'TPOT', COLOURS.light.p50)).pixels).toBeGreaterThan(20);
  });

  test('leave a gap where nothing ran', async () => {
    const rows = history(300);
    for (let row = 100; row < 200; row += 1) rows.ttft_p95_ms[row] = null;
    const { page } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ history: rows, sample: sample() });
      },
    });
    await expect.poll(async () => (await drawn(page, 'TTFT', COLOURS.light.p95)).pixels).toBeGreaterThan(100);
    const p50 = await drawn(page, 'TTFT', COLOURS.light.p50);
    const p95 = await drawn(page, 'TTFT', COLOURS.light.p95);
    expect(p95.widestGap).toBeGreaterThan(p95.width / 4);
    expect(p50.widestGap).toBeLessThan(p50.width / 20);
  });

  test('show 5, 15 or 30 minutes', async () => {
    const { page } = await browser.open({
      before: (stub) => {
        stub.hello = hello({
          history: history(1800),
          sample: sample(),
          marks: [mark('start', '', T0 - 1000)],
        });
      },
    });
    const spans = page.getByRole('group', { name: 'Time shown' }).getByRole('button');
    expect(await spans.allTextContents()).toEqual(['5 min', '15 min', '30 min']);
    expect(await chart(page, 'TTFT').getAttribute('data-marks')).toBe('0');
    await spans.nth(2).click();
    expect(await spans.nth(2).getAttribute('aria-pressed')).toBe('true');
    await expect.poll(() => chart(page, 'TTFT').getAttribute('data-marks')).toBe('1');
  });

  test('say in words what they show, anew every 5 s', async () => {
    const { page, stub } = await browser.open({ clock: true, before: fiveMinutes });
    const label = () => chart(page, 'TTFT').getAttribute('aria-label');
    expect(await chart(page, 'TTFT').getAttribute('role')).toBe('img');
    expect(await chart(page, 'TTFT').getAttribute('data-slo')).toBe('600');
    await expect.poll(label).toMatch(/^TTFT of the last 15 s, p50 \d+ ms, p95 \d+ ms, SLO 600 ms$/);
    const before = await label();
    await stub.say(sample(T0 + 1, { short: { ...sample().short, ttft_p50_ms: 111, ttft_p95_ms: 222 } }));
    await settle(page);
    await page.getByText('111 ms').first().waitFor();
    expect(await label()).toBe(before);
    await page.clock.runFor(5000);
    expect(await label()).toBe('TTFT of the last 15 s, p50 111 ms, p95 222 ms, SLO 600 ms');
  });

  test('have their latest five points as a table for those who cannot see them', async () => {
    const { page, stub } = await browser.open({ before: fiveMinutes });
    await stub.say(sample(T0 + 1));
    const rows = page.locator('figure').first().locator('table tr');
    await expect.poll(() => rows.last().textContent()).toBe('19:30:01251 ms452 ms');
    expect(await rows.count()).toBe(5);
  });

  test('are as wide as their place when the window changes', async () => {
    const { page } = await browser.open({ before: fiveMinutes });
    const canvas = chart(page, 'TTFT').locator('canvas');
    const width = () => canvas.evaluate((element: HTMLCanvasElement) => element.width);
    const before = await width();
    await page.setViewportSize({ width: 1500, height: 800 });
    await expect.poll(width).toBeGreaterThan(before + 50);
    expect((await boxOf(canvas)).width).toBeLessThanOrEqual((await boxOf(chart(page, 'TTFT'))).width + 1);
  });

  test('grow with the words around them when the window becomes a booth’s, and shrink again', async () => {
    const { page } = await browser.open({ before: fiveMinutes });
    const canvas = chart(page, 'TTFT').locator('canvas');
    const height = async () => (await boxOf(canvas)).height;
    expect(await height()).toBe(14 * 16);
    await page.setViewportSize(BOOTH);
    await expect.poll(height).toBe(14 * 20);
    await page.setViewportSize(LAPTOP);
    await expect.poll(height).toBe(14 * 16);
  });

  test('are drawn anew in the colours of another theme', async () => {
    const { page } = await browser.open({ before: fiveMinutes });
    await expect.poll(async () => (await drawn(page, 'TTFT', COLOURS.light.p95)).pixels).toBeGreaterThan(200);
    await page.emulateMedia({ colorScheme: 'dark' });
    await expect.poll(async () => (await drawn(page, 'TTFT', COLOURS.dark.p95)).pixels).toBeGreaterThan(200);
    expect((await drawn(page, 'TTFT', COLOURS.light.p95)).pixels).toBe(0);
  });

  test('tell the figures of the moment one points at', async () => {
    const { page } = await browser.open({ before: fiveMinutes });
    const legend = page.locator('figure').first().locator('.legend');
    const latest = await legend.textContent();
    const box = await boxOf(chart(page, 'TTFT').locator('canvas'));
    await page.mouse.move(box.x + box.width * 0.4, box.y + box.height / 2);
    await expect.poll(() => legend.textContent()).not.toBe(latest);
    await page.mouse.move(box.x, box.y - 200);
    await expect.poll(() => legend.textContent()).toBe(latest);
  });
});
