import { useState } from 'react';

import { api, messageOf } from '../api';
import { Complaint } from '../components/Complaint';
import { useConnected, useFeed } from '../feed/useFeed';
import { WHY_NOT, whyNot } from '../words';
import { leftInWords, type SweepStatus } from './progress';

/** How far a sweep is, how long it still takes, and a way to end it. What is measured stays. */
export function SweepProgress({ id, status }: { id: number; status: SweepStatus }) {
  const connected = useConnected();
  const allowed = useFeed((world) => world.hello?.can.sweep ?? false);
  const reason = whyNot(connected, allowed, null, WHY_NOT.sweeps);
  const [asked, setAsked] = useState(false);
  const [refusal, setRefusal] = useState<string | null>(null);
  const { state, done, of, now } = status;

  const stop = async () => {
    setAsked(true);
    setRefusal(null);
    try {
      await api.stopSweep(id);
    } catch (problem) {
      setRefusal(messageOf(problem));
      setAsked(false);
    }
  };

  return (
    <div className="sweep-progress">
      <div
        className="sweep-progress__track"
        role="progressbar"
        aria-label="Cells measured"
        aria-valuemin={0}
        aria-valuemax={of}
        aria-valuenow={done}
        aria-valuetext={`${done} of ${of}`}
      >
        <div className="sweep-progress__bar" style={{ width: `${of > 0 ? (done / of) * 100 : 0}%` }} />
      </div>
      <div className="sweep-progress__words">
        <span>
          <strong>
            {done} of {of}
          </strong>{' '}
          done
        </span>
        {state === 'running' && <span data-testid="left">{leftInWords(status)} left</span>}
        {state === 'running' && now !== null && <span className="quiet">{now}</span>}
        {state === 'running' && (
          <button
            type="button"
            className="button button--small"
            disabled={reason !== null || asked}
            title={reason ?? undefined}
            onClick={() => void stop()}
          >
            Stop sweep
          </button>
        )}
      </div>
      {refusal !== null && <Complaint>{refusal}</Complaint>}
    </div>
  );
}
