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
  const failed = turn.state === 'error';
  return (
    <section className="card turn" data-testid="turn" data-state={turn.state} aria-labelledby={id}>
      <div className="turn__head">
        <h3 id={id}>Turn {turn.turn}</h3>
        <TurnFigures turn={turn} />
        {turn.state === 'done' && <CachedBar cached={turn.cached_tokens} prompt={turn.prompt_tokens} />}
      </div>
      {turn.decision && <Why decision={turn.decision} />}
      <Bubble role="user" text={turn.user} leftOut={turn.user_left_out} />
      {turn.state === 'asking' ? (
        <p className="turn__asking">Waiting for the answer</p>
      ) : (
        <Bubble role="assistant" text={turn.assistant} leftOut={turn.assistant_left_out} />
      )}
      {failed && <Complaint>{[turn.error ?? 'failed', turn.complaint].filter(Boolean).join(': ')}</Complaint>}
    </section>
  );
}
