import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';

import { findings } from '../support/axe';
import { keepPicture, SOCKET_LOST, useBrowser } from '../support/browser';
import { hello, state } from '../support/fixtures';
import { furnish, PAGES } from '../support/furnished';

const browser = useBrowser();

/** Fails on what keeps people out, tells the rest. */
async function check(page: Page, name: string): Promise<void> {
  const found = await findings(page);
  const bad = found.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  for (const { rule, impact, where } of found)
    process.stdout.write(`${name}: ${impact} ${rule} ${where.join(', ')}\n`);
  expect(bad).toEqual([]);
}

async function ready(page: Page): Promise<void> {
  await page.locator('main h2').first().waitFor();
  await page.waitForLoadState('networkidle');
}

for (const scheme of ['light', 'dark'] as const) {
  describe(`S-188: nobody is kept out, ${scheme}`, () => {
    test.each(PAGES)('of $name', async ({ name, at }) => {
      const { page } = await browser.open({ at, scheme, before: furnish });
      await ready(page);
      await check(page, `${name} ${scheme}`);
    });

    test('of a dashboard where nothing runs, and of one that lost its server', async () => {
      const { page, stub, allow } = await browser.open({
        scheme,
        before: (stub) => {
          furnish(stub);
          stub.hello = hello({ state: state({ run: 'stopped', error: 'the target does not answer' }) });
        },
      });
      allow(SOCKET_LOST);
      await ready(page);
      await check(page, `stopped ${scheme}`);
      stub.refuse(true);
      stub.kill();
      await page.locator('[data-connection=down]').waitFor();
      await check(page, `down ${scheme}`);
    });
  });
}

describe('S-188: by keyboard', () => {
  test('everything on the dashboard is reached in the order it is read, and is seen to be', async () => {
    const { page } = await browser.open({ before: furnish });
    await ready(page);
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
      'Skip to the page',
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
      'What is TTFT?',
      'What is TPOT?',
      'What is ITL?',
      'What is Latency?',
      '5 min',
      '15 min',
      '30 min',
      'What is RPS?',
      'What is Requests?',
      'What is TOPS?',
      'What is KV Cache Hit?',
      'What is Queued?',
      'What is Errors?',
      'What is improvement?',
      'Static benchmark comparison',
      'Load a sweep file…',
    ]);
  });
});

describe('S-188: as people have set their machines', () => {
  test('nothing moves for those who do not want it', async () => {
    const { page } = await browser.open({ before: furnish, reducedMotion: 'reduce' });
    await ready(page);
    const moving = await page
      .locator('*')
      .evaluateAll((all) => all.filter((one) => getComputedStyle(one).transitionDuration !== '0s').length);
    expect(moving).toBe(0);
  });

  test('own colours keep edges and words', async () => {
    const { page } = await browser.open({ before: furnish, forcedColors: 'active' });
    await ready(page);
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

  test.each(PAGES)('at twice the size nothing of $name is lost', async ({ name, at }) => {
    const { page } = await browser.open({ at, before: furnish, size: { width: 640, height: 400 } });
    await ready(page);
    const lost = await page.evaluate(() => {
      const { scrollWidth, clientWidth } = document.documentElement;
      return scrollWidth - clientWidth;
    });
    expect(lost).toBeLessThanOrEqual(0);
    await keepPicture(page, `${name}-640`);
  });
});
