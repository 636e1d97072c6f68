import { Badge, type BadgeTone } from '../components/Badge';
import type { SweepState } from '../wire';

const TONES: Record<SweepState, BadgeTone> = {
  running: 'accent',
  done: 'good',
  stopped: 'idle',
  failed: 'bad',
};

export function SweepBadge({ state }: { state: SweepState }) {
  return <Badge tone={TONES[state]}>{state}</Badge>;
}
