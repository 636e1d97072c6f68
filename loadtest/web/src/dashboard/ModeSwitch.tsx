import { useId, useState } from 'react';

import { api, messageOf } from '../api';
import { feed } from '../feed/feed';
import { useConnected, useFeed } from '../feed/useFeed';
import { modeName } from '../names';
import { WHY_NOT, whyNot } from '../words';

const MODES = ['round_robin', 'kv'] as const;
type Mode = (typeof MODES)[number];

/** Round robin or KV-aware, while the load runs: the difference is seen happening. */
export function ModeSwitch() {
  const id = useId();
  const connected = useConnected();
  const mode = useFeed((world) => world.state?.mode ?? null);
  const sweep = useFeed((world) => world.state?.sweep ?? null);
  const allowed = useFeed((world) => world.hello?.can.mode ?? false);
  const [empties, setEmpties] = useState(true);
  const [wanted, setWanted] = useState<Mode | null>(null);
  const reason = whyNot(connected, allowed, sweep, WHY_NOT.mode);

  const flip = (to: Mode) => {
    if (wanted !== null) return;
    setWanted(to);
    api
      .setMode(to, empties)
      .catch((problem: unknown) => feed.complain(messageOf(problem)))
      .finally(() => setWanted(null));
  };

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
              onChange={() => flip(choice)}
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
