import type { ChartMark } from '../charts/marks';
import { modeName } from '../names';
import type { Mark } from '../wire';
import { MARK } from '../words';

/** Caches are emptied with a change of routing as a rule; one line says both. */
const TOGETHER_S = 2;

/** What happened since, in few words each. */
export function drawnMarks(marks: readonly Mark[], since: number): ChartMark[] {
  const isTold = (mark: Mark) =>
    mark.kind === 'reset' &&
    marks.some((other) => other.kind === 'mode' && Math.abs(other.t - mark.t) <= TOGETHER_S);
  return marks
    .filter((mark) => mark.t >= since && !isTold(mark))
    .map((mark) => ({ t: mark.t, label: labelOf(mark) }));
}

function labelOf(mark: Mark): string {
  if (mark.kind === 'mode') return modeName(mark.label);
  if (mark.kind === 'level') return `${mark.label} ${MARK.level}`;
  return MARK[mark.kind];
}
