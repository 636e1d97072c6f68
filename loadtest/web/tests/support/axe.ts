import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import type { AxeResults, RunOptions } from 'axe-core';
import type { Page } from 'playwright-core';

const source = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

type Finding = { rule: string; impact: string; where: string[] };

/** What a checker finds wrong with the page as it is now. */
export async function findings(page: Page): Promise<Finding[]> {
  if (await page.evaluate(() => !('axe' in window))) await page.evaluate(source);
  const results = await page.evaluate(async () => {
    const { axe } = window as unknown as {
      axe: { run(root: Document, options: RunOptions): Promise<AxeResults> };
    };
    return axe.run(document, {
      resultTypes: ['violations'],
      runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
    });
  });
  return results.violations.map(({ id, impact, nodes }) => ({
    rule: id,
    impact: impact ?? 'unknown',
    where: nodes.map((node) => node.target.join(' ')),
  }));
}
