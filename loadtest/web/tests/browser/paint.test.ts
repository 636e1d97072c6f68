import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { expect, test } from 'vitest';

import { ARTEFACTS, useBrowser } from '../support/browser';
import { furnish } from '../support/furnished';

const browser = useBrowser();

/** Generous: the machine that runs this has two cores and shares them. */
const MOST_MS = 3000;

test('the first paint of a browser that was never here is measured', async () => {
  const { page } = await browser.open({ before: furnish });
  await page.locator('.benchmark').waitFor();
  const paint = await page.evaluate(() =>
    Object.fromEntries(performance.getEntriesByType('paint').map(({ name, startTime }) => [name, startTime])),
  );
  const figures = await page.evaluate(() => {
    const [navigation] = performance.getEntriesByType('navigation') as PerformanceNavigationTiming[];
    return { domComplete: navigation?.domComplete ?? NaN };
  });
  mkdirSync(ARTEFACTS, { recursive: true });
  writeFileSync(join(ARTEFACTS, 'paint.json'), JSON.stringify({ ...paint, ...figures }, null, 2));
  const first = paint['first-paint'] ?? NaN;
  const contentful = paint['first-contentful-paint'] ?? NaN;
  process.stdout.write(`first paint ${first.toFixed(0)} ms, with content ${contentful.toFixed(0)} ms\n`);
  expect(first).toBeGreaterThan(0);
  expect(contentful).toBeLessThan(MOST_MS);
});
