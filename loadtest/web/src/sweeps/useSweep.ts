import { useState } from 'react';

import { api, ApiError } from '../api';
import { usePolling, type Polled } from '../hooks/usePolling';
import type { SweepDetail } from '../wire';

const EVERY_MS = 3000;

/** A sweep with its results so far, looked at every three seconds while it runs. */
export function useSweep(id: number): Polled<SweepDetail> {
  const [going, setGoing] = useState(true);
  const polled = usePolling((signal) => api.sweep(id, signal), going ? EVERY_MS : null, id);
  const forgotten = polled.error instanceof ApiError && polled.error.status === 404;
  const goesOn = !forgotten && (polled.data === null || polled.data.state === 'running');
  if (goesOn !== going) setGoing(goesOn);
  return polled;
}
