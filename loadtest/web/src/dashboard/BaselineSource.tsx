import { useRef, useState, type ChangeEvent } from 'react';

import { api, messageOf } from '../api';
import { Complaint } from '../components/Complaint';
import { feed } from '../feed/feed';
import { useConnected, useFeed } from '../feed/useFeed';
import type { Baselines } from '../wire';
import { WHY_NOT, whyNot } from '../words';

const MOST_BYTES = 8 * 1024 * 1024;

/** Where the figures come from, and how to have one's own. */
export function BaselineSource({ baselines }: { baselines: Baselines }) {
  const connected = useConnected();
  const allowed = useFeed((world) => world.hello?.can.sweep ?? false);
  const reason = whyNot(connected, allowed, null, WHY_NOT.baselines);
  const chooser = useRef<HTMLInputElement>(null);
  const [complaint, setComplaint] = useState<string | null>(null);

  const take = async (answer: Promise<Baselines>) => {
    try {
      feed.compareWith(await answer);
      setComplaint(null);
    } catch (problem) {
      setComplaint(messageOf(problem));
    }
  };
  const choose = async (event: ChangeEvent<HTMLInputElement>) => {
    const input = event.target;
    const file = input.files?.[0];
    if (!file) return;
    if (file.size > MOST_BYTES)
      setComplaint(`${file.name} has ${file.size} bytes, expected ${MOST_BYTES} or fewer`);
    else await take(file.text().then(api.compareWith));
    // The same file can be chosen again once it was put right.
    input.value = '';
  };

  return (
    <div className="source">
      <p className="quiet small" data-testid="source">
        {baselines.about}
      </p>
      <div className="source__buttons">
        <input
          ref={chooser}
          type="file"
          accept="application/json,.json"
          hidden
          aria-label="A sweep file"
          onChange={(event) => void choose(event)}
        />
        <button
          type="button"
          className="button button--small"
          disabled={reason !== null}
          title={reason ?? undefined}
          onClick={() => chooser.current?.click()}
        >
          Load a sweep file…
        </button>
        {baselines.replaced && (
          <button
            type="button"
            className="button button--small"
            disabled={reason !== null}
            title={reason ?? undefined}
            onClick={() => void take(api.compareWithFirst())}
          >
            Back to the first figures
          </button>
        )}
      </div>
      {complaint !== null && <Complaint>{complaint}</Complaint>}
    </div>
  );
}
