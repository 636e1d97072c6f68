import { describe, expect, test } from 'vitest';

import { SOCKET_LOST, useBrowser } from '../support/browser';
import { furnish, pageNamed, PAGES, show } from '../support/furnished';

const browser = useBrowser();

describe('S-188: without a network', () => {
  test('every page works from its own server alone', async () => {
    const { page, context, stub } = await browser.open({ before: furnish });
    const origin = new URL(stub.url).origin;
    const elsewhere: string[] = [];
    await context.route(
      (url) => url.origin !== origin,
      (route) => {
        elsewhere.push(route.request().url());
        return route.abort();
      },
    );
    await page.reload();
    for (const which of PAGES) await show(page, which);
    expect(elsewhere).toEqual([]);
  });

  test('fonts and pictures are the page’s own', async () => {
    const { page } = await browser.open({ before: furnish });
    const fonts = await page.evaluate(() => document.fonts.size);
    expect(fonts).toBe(0);
    const loaded = await page.evaluate(() =>
      performance.getEntriesByType('resource').map(({ name }) => name),
    );
    expect(loaded.length).toBeGreaterThan(2);
    for (const name of loaded) expect(new URL(name).origin).toBe(new URL(page.url()).origin);
  });

  test('a page whose code cannot be fetched says so, and the rest stays', async () => {
    const { page, allow } = await browser.open({ before: furnish });
    allow(/Failed to (load resource|fetch dynamically imported module)|ERR_FAILED|Unable to preload/);
    await page.route('**/assets/*', (route) => route.abort());
    await page.getByRole('link', { name: 'Features' }).click();
    await page.getByText('This page could not be loaded.').waitFor();
    expect(await page.getByRole('heading', { level: 1 }).count()).toBe(1);
    // Other pages are not lost with it.
    await page.getByRole('link', { name: 'Dashboard' }).click();
    await page.locator('.benchmark').waitFor();
    await page.getByRole('link', { name: 'Features' }).click();
    await page.unroute('**/assets/*');
    await page.getByRole('button', { name: 'Load again' }).click();
    await show(page, pageNamed('features'));
  });

  test('a page that is open stays as it is when its server goes', async () => {
    const { page, stub, context, allow } = await browser.open({ before: furnish });
    allow(SOCKET_LOST);
    allow(/ERR_INTERNET_DISCONNECTED/);
    await page.locator('.benchmark').waitFor();
    await context.setOffline(true);
    stub.kill();
    await page.locator('[data-connection=down]').waitFor();
    expect(await page.locator('.benchmark tbody tr').count()).toBe(7);
    expect(await page.getByTestId('kpi-value').first().textContent()).toBe('2.57');
    await context.setOffline(false);
    await page.locator('[data-connection=open]').waitFor();
  });
});
