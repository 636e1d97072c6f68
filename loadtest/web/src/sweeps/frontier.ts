import type { Baselines, Figures, SweepSet } from '../wire';

/** One mode over the levels. */
export type Curve = { name: string; recorded: boolean; points: readonly CurvePoint[] };
export type CurvePoint = { level: number; ms: number };

type Metric = keyof Figures;

/** Modes in the order they first appear. */
export function modesOf(set: SweepSet): string[] {
  return [...new Set(set.cells.map((cell) => cell.mode))];
}

export function levelsOf(set: SweepSet): number[] {
  return [...new Set(set.cells.map((cell) => cell.level))].sort((one, other) => one - other);
}

/** Mean over the repeats that count, and of how many; none when there are none. */
export function mean(
  set: SweepSet,
  mode: string,
  level: number,
  metric: Metric,
): { value: number; of: number } | null {
  const values = set.cells
    .filter((cell) => cell.mode === mode && cell.level === level && cell.invalid === null)
    .map((cell) => cell.figures?.[metric] ?? null)
    .filter((value): value is number => value !== null);
  if (values.length === 0) return null;
  return { value: values.reduce((sum, value) => sum + value, 0) / values.length, of: values.length };
}

export function measuredCurves(set: SweepSet): Curve[] {
  const levels = levelsOf(set);
  return modesOf(set).map((mode) => ({
    name: mode,
    recorded: false,
    points: levels.flatMap((level) => {
      const at = mean(set, mode, level, 'ttft_p95_ms');
      return at === null ? [] : [{ level, ms: at.value }];
    }),
  }));
}

export function recordedCurves(baselines: Baselines): Curve[] {
  const curve = (name: string, side: 'rr' | 'kv'): Curve => ({
    name,
    recorded: true,
    points: baselines.rows.flatMap((row) => {
      const ms = row[side]?.ttft_p95_ms ?? null;
      return ms === null ? [] : [{ level: row.concurrency, ms }];
    }),
  });
  return [curve('Recorded round-robin', 'rr'), curve('Recorded KV-aware', 'kv')].filter(
    (one) => one.points.length > 0,
  );
}

/** Where the axis ends: above nearly all points, so that a single one far away does not press the others flat. */
export function ceiling(curves: readonly Curve[], objectiveMs: number): number {
  const sorted = curves
    .flatMap((curve) => curve.points.map((point) => point.ms))
    .sort((one, other) => one - other);
  const most = sorted[Math.floor(sorted.length * 0.75)] ?? objectiveMs;
  const highest = Math.max(objectiveMs, sorted.at(-1) ?? 0);
  return roundUp(Math.min(highest * 1.08, Math.max(objectiveMs * 1.5, most * 1.3)));
}

/** Steps people count in: 1, 2 or 5 with zeros, so that there are four to eight of them. */
export function step(upTo: number): number {
  const rough = upTo / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((one) => one * power >= rough) ?? 10;
  return factor * power;
}

function roundUp(value: number): number {
  const by = step(value);
  return Math.ceil(value / by) * by;
}
