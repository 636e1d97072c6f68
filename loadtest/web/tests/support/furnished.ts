// A server with something to show on every page, for tests that look at all of them.

import type { Page } from 'playwright-core';

import * as fixtures from './fixtures';
import { gpu, T0, worker } from './fixtures';
import { answerAll, WORKERS } from './answers';
import type { Stub } from './stub';

/** Every page, with something that is there once it has all it asked for. */
export const PAGES = [
  { name: 'dashboard', at: '#/', shows: '.benchmark' },
  { name: 'conversations', at: '#/conversations', shows: '[data-testid=conversation]' },
  { name: 'conversation', at: '#/conversations/17', shows: '[data-testid=turn]' },
  { name: 'architecture', at: '#/architecture', shows: '.drawing' },
  { name: 'kv-routing', at: '#/kv-routing', shows: '[data-testid=tree-node]' },
  { name: 'features', at: '#/features', shows: '.feature' },
  { name: 'sweeps', at: '#/sweeps', shows: '[data-testid=sweep]' },
  { name: 'sweep', at: '#/sweeps/3', shows: '[data-testid=cell]' },
] as const;
type FurnishedPage = (typeof PAGES)[number];

export function pageNamed(name: FurnishedPage['name']): FurnishedPage {
  const found = PAGES.find((known) => known.name === name);
  if (!found) throw new Error(`no page is called ${name}`);
  return found;
}

/** Goes there as a link does, without loading everything anew, and waits until it is all there. */
export async function show(page: Page, { name, at, shows }: FurnishedPage): Promise<void> {
  await page.evaluate((hash) => {
    window.location.hash = hash;
  }, at);
  await page.locator(`main[data-page=${name}] ${shows}`).first().waitFor();
}

/** The rows in which requests went round, and how long a window takes to fill with them. */
const ROUND_ROBIN = { from: 120, until: 180 };
const WINDOW_ROWS = 15;

/** Five minutes, with one of round robin in them: latencies rise, and fall again. */
function fiveMinutes() {
  const history = fixtures.history(300);
  for (let row = ROUND_ROBIN.from; row < ROUND_ROBIN.until + WINDOW_ROWS; row += 1) {
    const rising = (row - ROUND_ROBIN.from) / WINDOW_ROWS;
    const falling = (ROUND_ROBIN.until + WINDOW_ROWS - row) / WINDOW_ROWS;
    const share = Math.min(1, rising, falling);
    const raise = (column: (number | null)[], by: number) => {
      column[row] = (column[row] ?? 0) + by * share;
    };
    raise(history.ttft_p50_ms, 90);
    raise(history.ttft_p95_ms, 260);
    raise(history.tpot_p50_ms, 2);
    raise(history.tpot_p95_ms, 6);
  }
  return history;
}

/** A load that runs, its last five minutes, workers of every colour, and an answer to every question. */
export function furnish(stub: Stub): void {
  const cards = WORKERS.map((name, at) =>
    worker(name, { gpus: [gpu('0', [63, 21.5, 88][at] ?? 0), gpu('1', [58.5, 34, 91.5][at] ?? 0)] }),
  );
  stub.hello = fixtures.hello({
    history: fiveMinutes(),
    marks: [
      fixtures.mark('level', '60', T0 - 260),
      fixtures.mark('mode', 'round_robin', T0 - 180),
      fixtures.mark('reset', 'caches', T0 - 180),
      fixtures.mark('mode', 'kv', T0 - 120),
    ],
    sample: fixtures.sample(),
    workers: fixtures.workers({ workers: cards }),
  });
  answerAll(stub);
}
