import { useConnected, useFeed } from '../feed/useFeed';
import type { SweepKind } from '../wire';
import { whyNot } from '../words';

/** Why a sweep cannot be started now; null when it can. */
export function useWhyNot(kind: SweepKind): string | null {
  const connected = useConnected();
  const allowed = useFeed((world) => world.hello?.can.sweep ?? false);
  // One in virtual time leaves the load alone, so only its own progress tells of it.
  const running = useFeed(
    (world) => world.state?.sweep ?? (world.sweep?.state === 'running' ? world.sweep.id : null),
  );
  const run = useFeed((world) => world.state?.run ?? 'stopped');
  const reason = whyNot(connected, allowed, running, 'sweeps cannot be started from this page');
  if (reason !== null) return reason;
  return kind === 'live' && run !== 'stopped' ? 'stop the load first: a live sweep makes its own' : null;
}
