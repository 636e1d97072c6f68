// What live figures are held against: the recorded row of the same load, on the same clock.

import type { BaselineRow, Baselines, Hello, LoadLevel, RecordedTimes } from '../wire';

export type Comparison = { row: BaselineRow; isExact: boolean };

/** The row of this many conversations, else the nearest one, of two equally near the lower. */
export function comparisonAt(baselines: Baselines | null, concurrency: number | null): Comparison | null {
  if (baselines === null || concurrency === null) return null;
  let nearest: BaselineRow | null = null;
  for (const row of baselines.rows) {
    const isNearer =
      nearest === null ||
      Math.abs(row.concurrency - concurrency) < Math.abs(nearest.concurrency - concurrency);
    if (isNearer) nearest = row;
  }
  return nearest && { row: nearest, isExact: nearest.concurrency === concurrency };
}

export function concurrencyOf(level: LoadLevel | null): number | null {
  return level?.concurrency ?? null;
}

/**
 * What recorded times are divided by: engines that run so many times as fast take that much less time. A sweep held to
 * the objective of this very load was measured on its clock, and stays as it is.
 */
export function divisor(baselines: Baselines | null, { speed, objective }: Hello): number {
  const isSame = (one: number, other: number) => Math.abs(one - other) <= 1e-6 * other;
  const isOfThisClock =
    baselines?.source === 'sweep' &&
    isSame(baselines.objective.ttft_ms, objective.ttft_ms) &&
    isSame(baselines.objective.tpot_ms, objective.tpot_ms);
  return isOfThisClock ? 1 : speed;
}

export function dividedBy(by: number, times: RecordedTimes | null): RecordedTimes | null {
  if (times === null) return null;
  const divided = Object.entries(times).map(([name, value]) => [name, value === null ? null : value / by]);
  return Object.fromEntries(divided) as RecordedTimes;
}
