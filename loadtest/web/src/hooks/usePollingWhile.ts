import { useState } from 'react';

import { ApiError } from '../api';
import { usePolling, type Polled } from './usePolling';

/** Asks every `everyMs` while the last answer says that it goes on. What the server does not know is not asked for again. */
export function usePollingWhile<T>(
  ask: (signal: AbortSignal) => Promise<T>,
  everyMs: number,
  key: number,
  goesOn: (data: T) => boolean,
): Polled<T> & { forgotten: boolean } {
  const [asks, setAsks] = useState(true);
  const polled = usePolling(ask, asks ? everyMs : null, key);
  const { data, error } = polled;
  const forgotten = error instanceof ApiError && error.status === 404;
  const asksOn = !forgotten && (data === null || goesOn(data));
  if (asksOn !== asks) setAsks(asksOn);
  return { ...polled, forgotten };
}
