import { useConnected, useFeed } from '../feed/useFeed';
import type { SweepKind } from '../wire';
import { WHY_NOT, whyNot } from '../words';

/** Why a sweep cannot be started now; null when it can. */
export function useWhyNot(kind: SweepKind, besideLoad: boolean): string | null {
  const connected = useConnected();
  const can = useFeed((world) => world.hello?.can ?? null);
  // One in virtual time leaves the load alone, so only its own progress tells of it.
  const running = useFeed(
    (world) => world.state?.sweep ?? (world.sweep?.state === 'running' ? world.sweep.id : null),
  );
  const loaded = useLoaded();
  const reason = whyNot(connected, can?.sweep ?? false, running, WHY_NOT.sweeps);
  if (reason !== null) return reason;
  if (kind === 'virtual')
    return loaded && !besideLoad ? 'the load is running: stop it first, or run beside it' : null;
  if (!can?.run) return 'a live sweep needs a load that can be started from this page';
  if (!can.mode) return 'a live sweep needs a router whose routing can be changed from this page';
  return loaded ? 'stop the load first: a live sweep makes its own' : null;
}

/** Whether the load runs for itself, and not for a sweep. */
export function useLoaded(): boolean {
  return useFeed(({ state }) => state !== null && state.run !== 'stopped' && state.sweep === null);
}
