import { useEffect } from 'react';

import { api } from '../api';
import type { Polled } from '../hooks/usePolling';
import { usePollingWhile } from '../hooks/usePollingWhile';
import type { Conversation } from '../wire';

const EVERY_MS = 3000;

/** A conversation, looked at every three seconds while it goes on. */
export function useConversation(id: number): Polled<Conversation> & { forgotten: boolean } {
  const polled = usePollingWhile(
    (signal) => api.conversation(id, signal),
    EVERY_MS,
    id,
    (conversation) => conversation.status === 'active',
  );
  const { data, again } = polled;

  // A decision is looked up after its answer, so the last one may come when the conversation is over: look once more.
  const lacks = data !== null && data.status !== 'active' && lacksDecision(data);
  useEffect(() => {
    if (!lacks) return undefined;
    const timer = setTimeout(again, EVERY_MS);
    return () => clearTimeout(timer);
  }, [lacks, again]);

  return polled;
}

function lacksDecision({ turns }: Conversation): boolean {
  const done = turns.filter((turn) => turn.state === 'done');
  return done.some((turn) => turn.decision !== null) && done.some((turn) => turn.decision === null);
}
