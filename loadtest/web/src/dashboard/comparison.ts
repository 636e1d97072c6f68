// What live figures are held against: the recorded row of the same load, on the same clock.

import type { BaselineRow, Baselines, LoadLevel, RecordedFigures } from '../wire';

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

/** Engines that run `speed` times as fast as the recorded ones take that much less time. */
export function atSpeed(figures: RecordedFigures | null, speed: number): RecordedFigures | null {
  if (figures === null || speed === 1) return figures;
  const divided = (value: number | null) => (value === null ? null : value / speed);
  return {
    ...figures,
    ttft_p50_ms: divided(figures.ttft_p50_ms),
    ttft_p95_ms: divided(figures.ttft_p95_ms),
    tpot_p50_ms: divided(figures.tpot_p50_ms),
    tpot_p95_ms: divided(figures.tpot_p95_ms),
    itl_p50_ms: divided(figures.itl_p50_ms),
    itl_p95_ms: divided(figures.itl_p95_ms),
    e2e_p50_s: divided(figures.e2e_p50_s),
    e2e_p95_s: divided(figures.e2e_p95_s),
  };
}
