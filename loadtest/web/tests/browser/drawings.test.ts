import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { BOOTH, LAPTOP, overhang, useBrowser } from '../support/browser';
import { hello, worker, workers } from '../support/fixtures';
import { furnish, pageNamed, show } from '../support/furnished';

const { open } = useBrowser();
const VENDORS = /nvidia|dynamo|digitalocean|tensorrt|openai/i;

/** Texts that reach out of the box they are in, or out of the drawing. */
async function strayTexts(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const stray: string[] = [];
    for (const text of document.querySelectorAll<SVGTextElement>('svg.drawing text')) {
      const within = text.closest('.box')?.querySelector(':scope > rect') ?? text.ownerSVGElement;
      const [inner, outer] = [text.getBoundingClientRect(), within?.getBoundingClientRect()];
      if (inner.width === 0 || !outer) continue;
      const slack = 0.5;
      const fits =
        inner.left >= outer.left - slack &&
        inner.right <= outer.right + slack &&
        inner.top >= outer.top - slack &&
        inner.bottom <= outer.bottom + slack;
      if (!fits) stray.push(text.textContent ?? '');
    }
    return stray;
  });
}

async function boxes(page: Page): Promise<string[]> {
  return page
    .locator('[data-box]')
    .evaluateAll((all) => all.map((one) => one.getAttribute('data-box') ?? ''));
}

describe('Demo Architecture', () => {
  const AT = '#/architecture';

  test('S-183: a drawing with a name, a description and every part', async () => {
    const { page } = await open({ at: AT, before: (stub) => (stub.hello = hello({ workers: workers() })) });
    const drawing = page.getByRole('img', { name: 'Demo architecture' });
    await drawing.waitFor();
    expect(await drawing.locator('desc').textContent()).toContain('least cost');
    const parts = await boxes(page);
    for (const part of [
      'Load generator',
      'Router',
      'Front end',
      'Tokens',
      'Index',
      'Scheduler',
      'Proxy',
      'Event feeds',
    ]) {
      expect(parts).toContain(part);
    }
    for (const part of ['Administration', 'Workers × 3', 'Worker 1', 'Worker 3', 'Prometheus', 'Grafana']) {
      expect(parts).toContain(part);
    }
    expect(await page.locator('main').innerText()).not.toMatch(VENDORS);
  });

  test('S-183: as many workers as the feed has', async () => {
    const { page, stub } = await open({ at: AT });
    await page.getByRole('img', { name: 'Demo architecture' }).waitFor();
    expect(await boxes(page)).toContain('Workers');
    await stub.say(workers({ workers: [worker('a'), worker('b')] }));
    await page.locator('[data-box="Workers × 2"]').waitFor();
    expect((await boxes(page)).filter((box) => /^Worker \d/.test(box))).toEqual(['Worker 1', 'Worker 2']);
    await stub.say(workers({ workers: Array.from({ length: 12 }, (_, at) => worker(`w-${at}`)) }));
    await page.locator('[data-box="Workers × 12"]').waitFor();
    expect((await boxes(page)).filter((box) => /^Worker \d/.test(box))).toEqual([
      'Worker 1',
      'Worker 2',
      'Worker 12',
    ]);
  });
});

describe('Features', () => {
  test('S-185: a figure, a name and a sentence each, and no vendor’s name', async () => {
    const { page } = await open({ at: '#/features' });
    const items = page.getByTestId('features').getByRole('listitem');
    await items.first().waitFor();
    expect(await items.count()).toBe(8);
    for (const item of await items.all()) {
      const name = (await item.getByRole('heading', { level: 3 }).textContent()) ?? '';
      expect(await item.getByRole('img', { name, exact: true }).count()).toBe(1);
      expect(await item.locator('svg rect, svg circle, svg path, svg text').count()).toBeGreaterThan(2);
      expect(((await item.locator('p').textContent()) ?? '').length).toBeGreaterThan(40);
    }
    expect(await page.locator('main').innerText()).not.toMatch(VENDORS);
  });
});

describe('every drawing', () => {
  test.each([LAPTOP, BOOTH])('at $width: no text leaves its box, and none is small', async (size) => {
    const { page } = await open({ size, before: furnish });
    for (const name of ['architecture', 'kv-routing', 'features', 'sweep'] as const) {
      await show(page, pageNamed(name));
      expect(await strayTexts(page), name).toEqual([]);
      const least = await page.locator('svg.drawing text').evaluateAll((texts) => {
        const px = (text: Element) => {
          const svg = (text as SVGTextElement).ownerSVGElement;
          const scale = (svg?.getBoundingClientRect().width ?? 0) / (svg?.viewBox.baseVal.width ?? 1);
          return Number.parseFloat(getComputedStyle(text).fontSize) * scale;
        };
        return Math.min(...texts.map(px));
      });
      expect(least, name).toBeGreaterThanOrEqual(size === BOOTH ? 16 : 12);
      expect(await overhang(page), name).toBeLessThanOrEqual(0);
    }
  });
});
