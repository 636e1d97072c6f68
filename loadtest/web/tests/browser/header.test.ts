import { describe, expect, test } from 'vitest';

import { colourOf, REFUSED, SOCKET_LOST, useBrowser } from '../support/browser';
import { COLOURS, hello, SUBTITLE, TITLE } from '../support/fixtures';
import { furnish, PAGES, show } from '../support/furnished';

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
    for (const which of PAGES) {
      await show(page, which);
      expect(await page.getByRole('heading', { level: 1 }).allTextContents()).toEqual([TITLE]);
      expect(await page.getByTestId('subtitle').textContent()).toBe(SUBTITLE);
      // A mode of sweeps has such a name among programs; people read its label.
      const visible = await page.locator('body').innerText();
      expect(visible, which.name).not.toMatch(/nvidia|dynamo|digitalocean/i);
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

  test('open by a click, and show which one is open', async () => {
    const { page } = await browser.open({ before: furnish, at: '#/features' });
    const current = page.locator('nav [aria-current=page]');
    for (const { label, hash, heading } of TABS) {
      await page.getByRole('link', { name: label, exact: true }).click();
      await page.getByRole('heading', { level: 2, name: heading, exact: true }).waitFor();
      expect(new URL(page.url()).hash).toBe(hash);
      expect(await current.allTextContents()).toEqual([label]);
      expect(await current.evaluate((tab) => getComputedStyle(tab).borderBottomColor)).toBe(
        COLOURS.light.accent,
      );
    }
  });

  test.each([
    ['#/conversations/17', 'Conversations', 'log-structured storage'],
    ['#/sweeps/3', 'Sweeps', 'Sweep 3, reference'],
  ])('%s lies under %s', async (at, label, heading) => {
    const { page } = await browser.open({ before: furnish, at });
    await page.getByRole('heading', { level: 2, name: heading }).waitFor();
    expect(await page.locator('nav [aria-current=page]').allTextContents()).toEqual([label]);
    expect(await page.title()).toBe(`${label} · ${TITLE}`);
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
  test('the first stop skips to the content and leaves the address alone', async () => {
    const { page } = await browser.open({ at: '#/features', before: furnish });
    await page.keyboard.press('Tab');
    const skip = page.getByRole('link', { name: 'Skip to content' });
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

  test('that was chosen is there before the page’s own code is', async () => {
    const { page, allow } = await browser.open({ scheme: 'light', before: furnish });
    allow(REFUSED);
    await page.getByTestId('theme').click();
    await page.getByTestId('theme').click();
    await page.route('**/assets/*.js', (route) => route.abort());
    await page.reload();
    expect(await page.locator('#root').innerHTML()).toBe('');
    expect(await colourOf(page.locator('body'))).toBe(COLOURS.dark.ink);
  });
});

describe('the footer', () => {
  test('says which version this is, and whose work is in it', async () => {
    const { page, stub } = await browser.open();
    const footer = page.getByRole('contentinfo');
    expect(await footer.textContent()).toBe('Kvlane 0.1.0 · Licences');
    const licences = footer.getByRole('link', { name: 'Licences' });
    const address = await licences.evaluate((link: HTMLAnchorElement) => link.href);
    expect(address).toBe(`${stub.url}licences.txt`);
    expect((await page.request.get(address)).status()).toBe(200);
  });
});
