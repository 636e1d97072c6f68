import { count } from '../format';
import { CandidateTable } from '../kv/CandidateTable';
import { howChosen } from '../kv/choice';
import { modeName } from '../names';
import type { Decision } from '../wire';

/** Why a turn went where it went: every worker's terms as the router weighed them. */
export function Why({ decision, requestId }: { decision: Decision; requestId: string | null }) {
  const { mode, blocks, block_size, candidates, barred } = decision;
  const chosen = decision.chosen ?? 0;
  const ranked = [...candidates.slice(chosen, chosen + 1), ...candidates.filter((_, at) => at !== chosen)];
  return (
    <details className="why">
      <summary>Why this worker</summary>
      <p className="quiet">
        {modeName(mode)} routing, a prompt of {count(blocks)} whole blocks of {count(block_size)} tokens.{' '}
        {howChosen(mode)}
      </p>
      <CandidateTable name="Why this worker" candidates={ranked} barred={barred} blocks={blocks} />
      {requestId !== null && <p className="quiet small">Request {requestId}</p>}
    </details>
  );
}
