import { describe, expect, test } from 'vitest';

import { BOOTH, boxOf, keepPicture, LAPTOP, useBrowser } from '../support/browser';
import { furnish, PAGES } from '../support/furnished';

const browser = useBrowser();

const SIZES = [
  ['1280', LAPTOP],
  ['1920', BOOTH],
] as const;

const sizePx = (element: Element) => Number.parseFloat(getComputedStyle(element).fontSize);

for (const [width, size] of SIZES) {
  for (const scheme of ['light', 'dark'] as const) {
    describe(`S-187: at ${width}, ${scheme}`, () => {
      test.each(PAGES)('$name fits', async ({ name, at }) => {
        const { page } = await browser.open({ at, size, scheme, before: furnish });
        await page.getByRole('heading', { level: 2 }).first().waitFor();
        await page.waitForLoadState('networkidle');
        const [scroll, client] = await page.evaluate(() => {
          const { scrollWidth, clientWidth } = document.documentElement;
          return [scrollWidth, clientWidth];
        });
        expect(scroll).toBeLessThanOrEqual(client ?? 0);
        await keepPicture(page, `${name}-${width}-${scheme}`);
      });
    });
  }
}

describe('S-187: on a booth’s screen', () => {
  test('what is read is large', async () => {
    const { page } = await browser.open({ size: BOOTH, before: furnish });
    const smallest = async (selector: string) => {
      const sizes = await page
        .locator(selector)
        .evaluateAll((all) => all.map((one) => getComputedStyle(one).fontSize));
      expect(sizes.length, selector).toBeGreaterThan(0);
      return Math.min(...sizes.map(Number.parseFloat));
    };
    expect(await page.locator('body').evaluate(sizePx)).toBeGreaterThanOrEqual(20);
    expect(await smallest('[data-testid=kpi-value]')).toBeGreaterThanOrEqual(44);
    expect(await smallest('main table tbody td, main table tbody th')).toBeGreaterThanOrEqual(20);
    expect(await smallest('main table thead th')).toBeGreaterThanOrEqual(20);
  });

  test('the figures lie beside the charts, on a laptop above them', async () => {
    const booth = await browser.open({ size: BOOTH, before: furnish });
    const table = await boxOf(booth.page.locator('.live-table'));
    const chart = await boxOf(booth.page.getByTestId('chart-TTFT'));
    expect(chart.x).toBeGreaterThan(table.x + table.width);
    const laptop = await browser.open({ size: LAPTOP, before: furnish });
    const above = await boxOf(laptop.page.locator('.live-table'));
    expect((await boxOf(laptop.page.getByTestId('chart-TTFT'))).y).toBeGreaterThan(above.y + above.height);
  });
});
