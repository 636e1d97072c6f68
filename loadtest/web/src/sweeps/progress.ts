import { DASH, duration } from '../format';
import type { SweepLine, SweepProgress, SweepState } from '../wire';

/** How far a sweep is. */
export type SweepStatus = {
  state: SweepState;
  done: number;
  of: number;
  left_s: number | null;
  now: string | null;
};

/** The feed is ahead of what was asked, unless it speaks of another sweep, or of one that has ended meanwhile. */
export function latest(
  line: Pick<SweepLine, 'id' | 'state' | 'done' | 'of' | 'left_s'>,
  progress: SweepProgress | null,
): SweepStatus {
  const asked: SweepStatus = {
    state: line.state,
    done: line.done,
    of: line.of,
    left_s: line.left_s,
    now: null,
  };
  if (progress === null || progress.id !== line.id || line.state !== 'running') return asked;
  const { state, done, of, left_s, now } = progress;
  return { state, done, of, left_s, now: now === '' ? null : now };
}

export function leftInWords({ state, left_s }: SweepStatus): string {
  return state === 'running' && left_s !== null ? `about ${duration(left_s)}` : DASH;
}
