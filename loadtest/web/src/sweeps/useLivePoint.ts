import { useFeed } from '../feed/useFeed';
import type { SweepKind } from '../wire';
import type { CurvePoint } from './frontier';

/** The load that runs now, as a point among a sweep's. A faster clock than the sweep's would not be comparable. */
export function useLivePoint(kind: SweepKind): CurvePoint | null {
  const level = useFeed((world) => world.state?.level?.concurrency ?? null);
  const isRunning = useFeed((world) => world.state?.run === 'running');
  const ms = useFeed((world) => world.sample?.figures.ttft_p95_ms ?? null);
  const speed = useFeed((world) => world.hello?.speed ?? 1);
  const comparable = kind === 'live' || speed === 1;
  return isRunning && comparable && level !== null && ms !== null ? { level, ms } : null;
}
