import { useCallback, useEffect, useRef, useState } from 'react';

import { messageOf } from '../api';

export type Polled<T> = {
  /** The last answer; it stays while later ones fail. */
  data: T | null;
  error: unknown;
  /** The error as a sentence. */
  complaint: string | null;
  again(): void;
};

/**
 * Asks at once, then every `everyMs`, or only once when that is null. An ask that is still on its way is not doubled.
 * Another `key` is another question: the last answer is forgotten.
 */
export function usePolling<T>(
  ask: (signal: AbortSignal) => Promise<T>,
  everyMs: number | null,
  key: string | number = '',
): Polled<T> {
  const [answer, setAnswer] = useState<{ key: string | number; data: T | null; error: unknown }>({
    key,
    data: null,
    error: null,
  });
  const latest = useRef(ask);
  const asking = useRef<AbortController | null>(null);
  useEffect(() => {
    latest.current = ask;
  });

  const again = useCallback(() => {
    if (asking.current) return;
    const controller = new AbortController();
    asking.current = controller;
    const settle = (change: { data: T; error: null } | { error: unknown }) => {
      if (controller.signal.aborted) return;
      asking.current = null;
      setAnswer((before) => ({ data: before.key === key ? before.data : null, ...change, key }));
    };
    latest.current(controller.signal).then(
      (data) => settle({ data, error: null }),
      (error: unknown) => settle({ error }),
    );
  }, [key]);

  useEffect(() => {
    again();
    return () => {
      asking.current?.abort();
      asking.current = null;
    };
  }, [again]);

  useEffect(() => {
    if (everyMs === null) return undefined;
    let timer = setTimeout(function tick() {
      timer = setTimeout(tick, everyMs);
      again();
    }, everyMs);
    return () => clearTimeout(timer);
  }, [again, everyMs]);

  const current = answer.key === key ? answer : { data: null, error: null };
  return {
    data: current.data,
    error: current.error,
    complaint: current.error === null ? null : messageOf(current.error),
    again,
  };
}
