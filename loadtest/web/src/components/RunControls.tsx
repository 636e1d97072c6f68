import { useEffect, useRef, useState } from 'react';

import { api, messageOf } from '../api';
import { feed } from '../feed/feed';
import { useConnected, useFeed } from '../feed/useFeed';
import { WHY_NOT, whyNot } from '../words';

/** How long a command that was taken may need to show in the feed before it can be given again. */
const SETTLES_MS = 1000;

/** Start and Stop. Nothing can be pressed that would be refused. */
export function RunControls() {
  const connected = useConnected();
  const run = useFeed((world) => world.state?.run ?? null);
  const sweep = useFeed((world) => world.state?.sweep ?? null);
  const allowed = useFeed((world) => world.hello?.can.run ?? false);
  const [sent, send] = useCommand();
  const reason = whyNot(connected, allowed, sweep, WHY_NOT.fixed);
  const idle = reason === null && !sent;
  return (
    <div className="run-controls" role="group" aria-label="Load">
      <button
        type="button"
        className="button button--primary"
        disabled={!idle || run !== 'stopped'}
        title={reason ?? undefined}
        onClick={() => send(api.start)}
      >
        Start
      </button>
      <button
        type="button"
        className="button"
        disabled={!idle || run !== 'running'}
        title={reason ?? undefined}
        onClick={() => send(api.stop)}
      >
        Stop
      </button>
    </div>
  );
}

/** One command at a time: a second click while the first is on its way does nothing. */
function useCommand(): [boolean, (command: () => Promise<void>) => void] {
  const [sent, setSent] = useState(false);
  const busy = useRef(false);
  const settling = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(settling.current), []);

  const done = () => {
    busy.current = false;
    setSent(false);
  };
  const send = (command: () => Promise<void>) => {
    if (busy.current) return;
    busy.current = true;
    setSent(true);
    command().then(
      () => {
        settling.current = setTimeout(done, SETTLES_MS);
      },
      (problem: unknown) => {
        feed.complain(messageOf(problem));
        done();
      },
    );
  };
  return [sent, send];
}
