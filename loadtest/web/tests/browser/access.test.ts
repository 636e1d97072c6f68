import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { findings } from '../support/axe';
import { BOOTH, keepPicture, overhang, SOCKET_LOST, useBrowser } from '../support/browser';
import { hello, state, workers } from '../support/fixtures';
import { furnish, pageNamed, PAGES, show } from '../support/furnished';

const browser = useBrowser();

/** Fails on what keeps people out, tells the rest. */
async function check(page: Page, name: string): Promise<void> {
  const found = await findings(page);
  const bad = found.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  for (const { rule, impact, where } of found)
    process.stdout.write(`${name}: ${impact} ${rule} ${where.join(', ')}\n`);
  expect(bad, name).toEqual([]);
}

const SCHEMES = ['light', 'dark'] as const;

describe('S-188: nobody is kept out', () => {
  test('of any page', { timeout: 60_000 }, async () => {
    // Nothing is looked at on its way from one colour to another.
    const { page } = await browser.open({ reducedMotion: 'reduce', before: furnish });
    for (const which of PAGES) {
      await show(page, which);
      for (const colorScheme of SCHEMES) {
        await page.emulateMedia({ colorScheme });
        await check(page, `${which.name} ${colorScheme}`);
      }
    }
  });

  test('of a booth’s screen', { timeout: 60_000 }, async () => {
    const { page } = await browser.open({ size: BOOTH, reducedMotion: 'reduce', before: furnish });
    for (const name of ['dashboard', 'conversation'] as const) {
      await show(page, pageNamed(name));
      for (const colorScheme of SCHEMES) {
        await page.emulateMedia({ colorScheme });
        await check(page, `${name} ${colorScheme} 1920`);
      }
    }
  });

  for (const scheme of SCHEMES) {
    test(`${scheme}: of a dashboard where nothing runs, and of one that lost its server`, async () => {
      const { page, stub, allow } = await browser.open({
        scheme,
        before: (stub) => {
          furnish(stub);
          stub.hello = hello({
            state: state({ run: 'stopped', error: 'the target does not answer' }),
            workers: workers(),
          });
        },
      });
      allow(SOCKET_LOST);
      await show(page, pageNamed('dashboard'));
      await check(page, `stopped ${scheme}`);
      stub.refuse(true);
      stub.kill();
      await page.locator('[data-connection=down]').waitFor();
      await check(page, `down ${scheme}`);
    });
  }
});

describe('S-188: by keyboard', () => {
  test('everything on the dashboard is reached in the order it is read, and is seen to be', async () => {
    const { page } = await browser.open({ before: furnish });
    await show(page, pageNamed('dashboard'));
    const stops: string[] = [];
    for (let presses = 0; presses < 60; presses += 1) {
      await page.keyboard.press('Tab');
      const stop = await page.evaluate(() => {
        const at = document.activeElement as HTMLElement | null;
        if (!at || at === document.body) return null;
        const shown = at.matches('.mode__choice input') ? (at.nextElementSibling as HTMLElement) : at;
        const { outlineStyle, outlineWidth } = getComputedStyle(shown);
        const name = at.getAttribute('aria-label') ?? at.textContent?.trim() ?? '';
        return {
          name: name || `${at.tagName} ${at.getAttribute('type')}`,
          outline: `${outlineStyle} ${outlineWidth}`,
        };
      });
      if (stop === null) break;
      expect(stop.outline, stop.name).toBe('solid 3px');
      stops.push(stop.name);
    }
    expect(stops).toEqual([
      'Skip to content',
      'Theme: system',
      'Stop',
      'Dashboard',
      'Conversations',
      'Demo Architecture',
      'KV Routing',
      'Features',
      'Sweeps',
      'INPUT range',
      'INPUT radio',
      'INPUT checkbox',
      'Live figures beside recorded ones',
      'About TTFT',
      'About TPOT',
      'About ITL',
      'About Latency',
      '5 min',
      '15 min',
      '30 min',
      'About RPS',
      'About Requests',
      'About TOPS',
      'About KV Cache Hit',
      'About Queued',
      'About Errors',
      'About improvement',
      'Static benchmark comparison',
      'Load a sweep file…',
      'Licences',
    ]);
  });
});

describe('S-188: as people have set their machines', () => {
  test('nothing moves for those who do not want it', async () => {
    const { page } = await browser.open({ before: furnish, reducedMotion: 'reduce' });
    await show(page, pageNamed('dashboard'));
    const moving = await page
      .locator('*')
      .evaluateAll((all) => all.filter((one) => getComputedStyle(one).transitionDuration !== '0s').length);
    expect(moving).toBe(0);
  });

  test('own colours keep edges and words', async () => {
    const { page } = await browser.open({ before: furnish, forcedColors: 'active' });
    await show(page, pageNamed('dashboard'));
    const edge = await page
      .locator('.card')
      .first()
      .evaluate((card) => getComputedStyle(card).borderTopStyle);
    expect(edge).toBe('solid');
    expect(await page.getByRole('img', { name: 'over SLO' }).count()).toBeGreaterThan(0);
    const routing = page.locator('.mode__choice span');
    const fills = await routing.evaluateAll((all) => all.map((one) => getComputedStyle(one).backgroundColor));
    expect(fills[0]).not.toBe(fills[1]);
    await keepPicture(page, 'dashboard-forced-colours');
  });

  test('at twice the size nothing is lost', async () => {
    const { page } = await browser.open({ before: furnish, size: { width: 640, height: 400 } });
    for (const which of PAGES) {
      await show(page, which);
      expect(await overhang(page), which.name).toBeLessThanOrEqual(0);
      await keepPicture(page, `${which.name}-640`);
    }
  });
});
