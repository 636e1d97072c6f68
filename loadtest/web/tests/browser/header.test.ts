import { describe, expect, test } from 'vitest';

import { colourOf, SOCKET_LOST, useBrowser } from '../support/browser';
import { COLOURS, hello, SUBTITLE, TITLE } from '../support/fixtures';
import { furnish } from '../support/furnished';

const browser = useBrowser();

const TABS = [
  { label: 'Dashboard', hash: '#/', heading: 'Live vs Round-Robin' },
  { label: 'Conversations', hash: '#/conversations', heading: 'Conversations' },
  { label: 'Demo Architecture', hash: '#/architecture', heading: 'Demo Architecture' },
  { label: 'KV Routing', hash: '#/kv-routing', heading: 'KV Routing' },
  { label: 'Features', hash: '#/features', heading: 'Features' },
  { label: 'Sweeps', hash: '#/sweeps', heading: 'Sweeps' },
];

describe('title and subtitle', () => {
  test('S-143, S-144: are the same on every page, and name no vendor', async () => {
    const { page } = await browser.open({ before: furnish });
    for (const { hash } of TABS) {
      await page.goto(`${page.url().split('#')[0]}${hash}`);
      await page.locator('main h2').first().waitFor();
      expect(await page.getByRole('heading', { level: 1 }).allTextContents()).toEqual([TITLE]);
      expect(await page.getByTestId('subtitle').textContent()).toBe(SUBTITLE);
      expect(await page.content()).not.toMatch(/nvidia|dynamo|digitalocean/i);
    }
  });

  test('S-143, S-144: are there before a server says anything', async () => {
    const { page, allow } = await browser.open({ before: (stub) => stub.refuse(true), greeted: false });
    allow(SOCKET_LOST);
    expect(await page.getByRole('heading', { level: 1 }).textContent()).toBe(TITLE);
    expect(await page.getByTestId('subtitle').textContent()).toBe(SUBTITLE);
    expect(await page.title()).toBe(TITLE);
  });

  test('S-144: are the server’s when it has its own', async () => {
    const { page } = await browser.open({
      before: (stub) => {
        stub.hello = hello({ brand: { title: 'Warm caches', subtitle: 'at our booth' } });
      },
    });
    expect(await page.getByRole('heading', { level: 1 }).textContent()).toBe('Warm caches');
    expect(await page.getByTestId('subtitle').textContent()).toBe('at our booth');
    await expect.poll(() => page.title()).toBe('Warm caches');
    await page.getByRole('link', { name: 'Features' }).click();
    await expect.poll(() => page.title()).toBe('Features · Warm caches');
  });
});

describe('S-145: tabs', () => {
  test('are six, in their order', async () => {
    const { page } = await browser.open({ before: furnish });
    const tabs = page.getByRole('navigation', { name: 'Pages' }).getByRole('link');
    expect(await tabs.allTextContents()).toEqual(TABS.map(({ label }) => label));
  });

  test.each(TABS)('$label opens by a click', async ({ label, hash, heading }) => {
    const { page } = await browser.open({ before: furnish, at: hash === '#/' ? '#/features' : '#/' });
    await page.getByRole('link', { name: label, exact: true }).click();
    await page.getByRole('heading', { level: 2, name: heading, exact: true }).waitFor();
    expect(new URL(page.url()).hash).toBe(hash);
    const current = page.locator('nav [aria-current=page]');
    expect(await current.allTextContents()).toEqual([label]);
    expect(await current.evaluate((tab) => getComputedStyle(tab).borderBottomColor)).toBe(
      COLOURS.light.accent,
    );
  });

  test('are walked by keyboard, and the reader goes on in the page', async () => {
    const { page } = await browser.open({ before: furnish });
    await page.getByRole('link', { name: 'Dashboard' }).focus();
    await page.keyboard.press('Tab');
    expect(await page.evaluate(() => document.activeElement?.textContent)).toBe('Conversations');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 2, name: 'Conversations' }).waitFor();
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('main');
  });
});

describe('help for those who do not use a mouse', () => {
  test('the first stop skips to the page and leaves the address alone', async () => {
    const { page } = await browser.open({ at: '#/features', before: furnish });
    await page.keyboard.press('Tab');
    const skip = page.getByRole('link', { name: 'Skip to the page' });
    expect(await skip.evaluate((link) => link === document.activeElement)).toBe(true);
    expect((await skip.boundingBox())?.y).toBeGreaterThanOrEqual(0);
    await page.keyboard.press('Enter');
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('main');
    expect(new URL(page.url()).hash).toBe('#/features');
  });
});

describe('S-188: the theme', () => {
  test('follows the system, then the choice, and the choice is kept', async () => {
    const { page } = await browser.open({ scheme: 'dark', before: furnish });
    const theme = page.getByTestId('theme');
    const title = page.getByRole('heading', { level: 1 });
    expect(await theme.getAttribute('aria-label')).toBe('Theme: system');
    expect(await colourOf(title)).toBe(COLOURS.dark.ink);
    await theme.click();
    expect(await theme.getAttribute('aria-label')).toBe('Theme: light');
    expect(await colourOf(title)).toBe(COLOURS.light.ink);
    await page.reload();
    expect(await colourOf(title)).toBe(COLOURS.light.ink);
    await theme.click();
    expect(await colourOf(title)).toBe(COLOURS.dark.ink);
    await theme.click();
    expect(await theme.getAttribute('aria-label')).toBe('Theme: system');
  });
});
