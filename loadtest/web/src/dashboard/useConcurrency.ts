import { useCallback, useEffect, useRef, useState } from 'react';

import { api, messageOf } from '../api';
import { feed } from '../feed/feed';
import { useFeed } from '../feed/useFeed';
import { useDebounced, type Debounced } from '../hooks/useDebounced';
import { concurrencyOf } from './comparison';

/** A hand that moves the slider is done when it rests this long. */
const DEBOUNCE_MS = 300;

export type ConcurrencyChoice = {
  /** What is wanted while it is being chosen, else what the server runs. */
  shown: number | null;
  pick(concurrency: number): void;
  hold(): void;
  release(): void;
};

/** The load's level: set from here, followed when it is set from elsewhere, unless somebody holds the slider. */
export function useConcurrency(): ConcurrencyChoice {
  const running = useFeed((world) => concurrencyOf(world.state?.level ?? null));
  const [wanted, want] = useState<number | null>(null);
  const held = useRef(false);
  /** The server's level changed since the last pick. */
  const isOutdated = useRef(false);

  const sent: Debounced<number> = useDebounced((concurrency) => {
    api.setConcurrency(concurrency).catch((problem: unknown) => {
      feed.complain(messageOf(problem));
      // Somebody may have moved on meanwhile.
      if (!sent.isPending()) want((now) => (now === concurrency ? null : now));
    });
  }, DEBOUNCE_MS);

  const follow = useCallback(() => {
    if (isOutdated.current && !held.current && !sent.isPending()) want(null);
  }, [sent]);

  useEffect(() => {
    isOutdated.current = true;
    follow();
  }, [running, follow]);

  return {
    shown: wanted ?? running,
    pick: (concurrency) => {
      isOutdated.current = false;
      want(concurrency);
      sent.call(concurrency);
    },
    hold: () => {
      held.current = true;
    },
    release: () => {
      held.current = false;
      follow();
    },
  };
}
