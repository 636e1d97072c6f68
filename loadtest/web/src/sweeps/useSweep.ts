import { api } from '../api';
import type { Polled } from '../hooks/usePolling';
import { usePollingWhile } from '../hooks/usePollingWhile';
import type { SweepDetail } from '../wire';

const EVERY_MS = 3000;

/** A sweep with its results so far, looked at every three seconds while it runs. */
export function useSweep(id: number): Polled<SweepDetail> {
  return usePollingWhile(
    (signal) => api.sweep(id, signal),
    EVERY_MS,
    id,
    (sweep) => sweep.state === 'running',
  );
}
