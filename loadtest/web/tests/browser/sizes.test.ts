import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { BOOTH, boxOf, keepPicture, LAPTOP, overhang, useBrowser } from '../support/browser';
import { furnish, pageNamed, PAGES, show } from '../support/furnished';

const browser = useBrowser();

const SIZES = [
  ['1280', LAPTOP],
  ['1920', BOOTH],
] as const;

test('S-187: every page fits every screen, and has its picture taken', { timeout: 120_000 }, async () => {
  const { page } = await browser.open({ reducedMotion: 'reduce', before: furnish });
  for (const which of PAGES) {
    await show(page, which);
    for (const [width, size] of SIZES) {
      await page.setViewportSize(size);
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme });
        expect(await overhang(page), `${which.name} at ${width}`).toBeLessThanOrEqual(0);
        await keepPicture(page, `${which.name}-${width}-${colorScheme}`);
      }
    }
  }
});

/** Words smaller than they should be, with their sizes. Signs that only repeat what is said are not words. */
async function small(page: Page, leastPx: number): Promise<string[]> {
  return page.evaluate((least) => {
    const found: string[] = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const words = texts.currentNode.textContent?.trim() ?? '';
      const within = texts.currentNode.parentElement;
      if (words === '' || !within) continue;
      if (within.closest('svg, noscript, .visually-hidden, .level-sign, [aria-hidden=true]')) continue;
      const px = Number.parseFloat(getComputedStyle(within).fontSize);
      if (px < least) found.push(`${px} px: ${words}`);
    }
    return found;
  }, leastPx);
}

describe('S-187: on a booth’s screen', () => {
  test('what is read is large, on every page', async () => {
    const { page } = await browser.open({ size: BOOTH, before: furnish });
    for (const which of PAGES) {
      await show(page, which);
      expect(await small(page, 20), which.name).toEqual([]);
    }
    await show(page, pageNamed('dashboard'));
    const figures = page.getByTestId('kpi-value');
    const sizes = await figures.evaluateAll((all) => all.map((one) => getComputedStyle(one).fontSize));
    expect(Math.min(...sizes.map(Number.parseFloat))).toBeGreaterThanOrEqual(44);
  });

  test('the figures lie beside the charts, on a laptop above them', async () => {
    const { page } = await browser.open({ size: BOOTH, before: furnish });
    const [table, chart] = [page.locator('.live-table'), page.getByTestId('chart-TTFT')];
    const [beside, drawn] = [await boxOf(table), await boxOf(chart)];
    expect(drawn.x).toBeGreaterThan(beside.x + beside.width);
    await page.setViewportSize(LAPTOP);
    const above = await boxOf(table);
    expect((await boxOf(chart)).y).toBeGreaterThan(above.y + above.height);
  });
});
