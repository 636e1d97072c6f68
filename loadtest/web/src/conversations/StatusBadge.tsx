import { Badge, type BadgeTone } from '../components/Badge';
import type { ConversationStatus } from '../wire';

const TONES: Record<ConversationStatus, BadgeTone> = {
  active: 'good',
  completed: 'idle',
  stopped: 'idle',
  error: 'bad',
};

/** One that was cut short is over like any other; only its tooltip says how. */
export function StatusBadge({ status }: { status: ConversationStatus }) {
  return (
    <Badge tone={TONES[status]} title={status === 'stopped' ? 'ended early' : undefined}>
      {status === 'stopped' ? 'completed' : status}
    </Badge>
  );
}
