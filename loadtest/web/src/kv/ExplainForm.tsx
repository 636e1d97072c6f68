import { useId, useState, type FormEvent } from 'react';

import { api, messageOf } from '../api';
import { Complaint } from '../components/Complaint';
import { useConnected } from '../feed/useFeed';
import type { Explanation } from '../wire';
import { Explained } from './Explained';

/** What the server takes. */
const MOST_BYTES = 256 * 1024;

type Outcome = { explanation: Explanation } | { wrong: string } | null;

/** A prompt of one's own, and what the router would do with it. Nothing is placed. */
export function ExplainForm() {
  const connected = useConnected();
  const [prompt, setPrompt] = useState('');
  const [asking, setAsking] = useState(false);
  const [outcome, setOutcome] = useState<Outcome>(null);
  const id = useId();

  const ask = async (event: FormEvent) => {
    event.preventDefault();
    if (asking) return;
    const size = new TextEncoder().encode(prompt).length;
    if (size > MOST_BYTES) {
      setOutcome({ wrong: `the prompt has ${size} bytes, expected ${MOST_BYTES} at most` });
      return;
    }
    setAsking(true);
    try {
      setOutcome({ explanation: await api.explain(prompt) });
    } catch (problem) {
      setOutcome({ wrong: messageOf(problem) });
    } finally {
      setAsking(false);
    }
  };

  return (
    <>
      <form className="explain" onSubmit={(event) => void ask(event)}>
        <label htmlFor={id}>Prompt</label>
        <textarea
          id={id}
          rows={4}
          value={prompt}
          aria-describedby={`${id}note`}
          onChange={(event) => setPrompt(event.target.value)}
        />
        <div className="explain__do">
          <button
            type="submit"
            className="button button--primary"
            disabled={!connected || asking || prompt.trim() === ''}
          >
            {asking ? 'Asking' : 'Explain'}
          </button>
          <span id={`${id}note`} className="quiet">
            Paste the beginning of a conversation to see who has it. Nothing is sent to a worker.
          </span>
        </div>
      </form>
      {outcome !== null && 'wrong' in outcome && <Complaint>{outcome.wrong}</Complaint>}
      {outcome !== null && 'explanation' in outcome && <Explained explanation={outcome.explanation} />}
    </>
  );
}
