import { useEffect, useMemo, useRef } from 'react';

export type Debounced<T> = { call(value: T): void; isPending(): boolean };

/** Runs once nothing has been called for `ms`, with the last value. Leaving the page forgets it. */
export function useDebounced<T>(run: (value: T) => void, ms: number): Debounced<T> {
  const latest = useRef(run);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEffect(() => {
    latest.current = run;
  });
  useEffect(
    () => () => {
      if (timer.current !== null) clearTimeout(timer.current);
      timer.current = null;
    },
    [],
  );
  return useMemo(
    () => ({
      call(value) {
        if (timer.current !== null) clearTimeout(timer.current);
        timer.current = setTimeout(() => {
          timer.current = null;
          latest.current(value);
        }, ms);
      },
      isPending: () => timer.current !== null,
    }),
    [ms],
  );
}
