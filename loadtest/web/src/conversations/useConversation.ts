import { useEffect, useState } from 'react';

import { api, ApiError } from '../api';
import { usePolling, type Polled } from '../hooks/usePolling';
import type { Conversation } from '../wire';

const EVERY_MS = 3000;

/** A conversation, looked at every three seconds while it goes on. */
export function useConversation(id: number): Polled<Conversation> & { forgotten: boolean } {
  const [going, setGoing] = useState(true);
  const polled = usePolling((signal) => api.conversation(id, signal), going ? EVERY_MS : null, id);
  const { data, error, again } = polled;

  const forgotten = error instanceof ApiError && error.status === 404;
  const goesOn = !forgotten && (data === null || data.status === 'active');
  if (goesOn !== going) setGoing(goesOn);

  // A decision is looked up after its answer, so the last one may come when the conversation is over: look once more.
  const lacks = data !== null && data.status !== 'active' && lacksDecision(data);
  useEffect(() => {
    if (!lacks) return undefined;
    const timer = setTimeout(again, EVERY_MS);
    return () => clearTimeout(timer);
  }, [lacks, again]);

  return { ...polled, forgotten };
}

function lacksDecision({ turns }: Conversation): boolean {
  const done = turns.filter((turn) => turn.state === 'done');
  return done.some((turn) => turn.decision !== null) && done.some((turn) => turn.decision === null);
}
