import { useEffect, useState } from 'react';

/** This machine's time in ms, looked at every `everyMs`; it stands still when that is null. */
export function useNow(everyMs: number | null): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (everyMs === null) return undefined;
    setNow(Date.now());
    let timer = setTimeout(function tick() {
      timer = setTimeout(tick, everyMs);
      setNow(Date.now());
    }, everyMs);
    return () => clearTimeout(timer);
  }, [everyMs]);
  return now;
}
