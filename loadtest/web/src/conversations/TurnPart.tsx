import { useId } from 'react';

import { Complaint } from '../components/Complaint';
import type { Turn } from '../wire';
import { Bubble } from './Bubble';
import { CachedBar } from './CachedBar';
import { TurnFigures } from './TurnFigures';
import { Why } from './Why';

/** One question, its answer, and what it took. */
export function TurnPart({ turn }: { turn: Turn }) {
  const id = useId();
  return (
    <section className="card turn" data-testid="turn" data-state={turn.state} aria-labelledby={id}>
      <div className="turn__head">
        <h3 id={id}>Turn {turn.turn}</h3>
        <TurnFigures turn={turn} />
        {turn.state === 'done' && <CachedBar cached={turn.cached_tokens} prompt={turn.prompt_tokens} />}
      </div>
      {turn.decision && <Why decision={turn.decision} requestId={turn.request_id} />}
      <Bubble role="user" text={turn.user} leftOut={turn.user_left_out} />
      <Bubble role="assistant" text={turn.assistant} leftOut={turn.assistant_left_out} />
      {turn.state === 'asking' && <p className="turn__unanswered">Waiting for the answer</p>}
      {turn.state === 'stopped' && (
        <p className="turn__unanswered">Not answered: the conversation was ended early</p>
      )}
      {turn.state === 'error' && (
        <Complaint>{[turn.error ?? 'failed', turn.complaint].filter(Boolean).join(': ')}</Complaint>
      )}
    </section>
  );
}
