import { useEffect, useId, useRef, useState } from 'react';

import { api, messageOf } from '../api';
import { feed } from '../feed/feed';
import { useConnected, useFeed } from '../feed/useFeed';
import { modeName } from '../names';
import { WHY_NOT, whyNot } from '../words';

const MODES = ['round_robin', 'kv'] as const;
type Mode = (typeof MODES)[number];

/** How long a router may take to be seen in the mode it was asked for. */
const FOLLOWS_MS = 15_000;

/** Round robin or KV-aware, while the load runs: the difference is seen happening. */
export function ModeSwitch() {
  const id = useId();
  const connected = useConnected();
  const mode = useFeed((world) => world.state?.mode ?? null);
  const sweep = useFeed((world) => world.state?.sweep ?? null);
  const allowed = useFeed((world) => world.hello?.can.mode ?? false);
  const [empties, setEmpties] = useState(true);
  const [wanted, flip] = useFlip(mode);
  const reason = whyNot(connected, allowed, sweep, WHY_NOT.mode);

  return (
    <fieldset className="mode" disabled={reason !== null} title={reason ?? undefined}>
      <legend>Routing</legend>
      <div className="mode__choices" role="radiogroup" aria-label="Routing">
        {MODES.map((choice) => (
          <label key={choice} className="mode__choice">
            <input
              type="radio"
              name={id}
              value={choice}
              checked={(wanted ?? mode) === choice}
              onChange={() => flip(choice, empties)}
            />
            <span>{modeName(choice)}</span>
          </label>
        ))}
      </div>
      <label className="mode__reset">
        <input type="checkbox" checked={empties} onChange={(event) => setEmpties(event.target.checked)} />
        empty caches first
      </label>
    </fieldset>
  );
}

/** What was asked for, until the router is seen to do it; meanwhile nothing else is asked. */
function useFlip(mode: string | null): [Mode | null, (to: Mode, empties: boolean) => void] {
  const [wanted, setWanted] = useState<Mode | null>(null);
  const asking = useRef(false);
  if (wanted !== null && wanted === mode) setWanted(null);
  useEffect(() => {
    if (wanted === null) return undefined;
    const timer = setTimeout(() => setWanted(null), FOLLOWS_MS);
    return () => clearTimeout(timer);
  }, [wanted]);

  const flip = (to: Mode, empties: boolean) => {
    if (asking.current || wanted !== null) return;
    asking.current = true;
    setWanted(to);
    api
      .setMode(to, empties)
      .catch((problem: unknown) => {
        feed.complain(messageOf(problem));
        setWanted(null);
      })
      .finally(() => {
        asking.current = false;
      });
  };
  return [wanted, flip];
}
