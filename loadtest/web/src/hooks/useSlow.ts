import { useEffect, useRef, useState } from 'react';

/** The value as it was at most `ms` ago, the first one at once: for what should not change with every sample. */
export function useSlow<T>(value: T | null, ms: number): T | null {
  const [shown, setShown] = useState(value);
  const latest = useRef(value);
  const isFirst = shown === null && value !== null;
  if (isFirst) setShown(value);
  useEffect(() => {
    latest.current = value;
  });
  useEffect(() => {
    let timer = setTimeout(function tick() {
      timer = setTimeout(tick, ms);
      setShown(latest.current);
    }, ms);
    return () => clearTimeout(timer);
  }, [ms]);
  return isFirst ? value : shown;
}
