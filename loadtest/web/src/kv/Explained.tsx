import { count, DASH } from '../format';
import { modeName, shortName } from '../names';
import type { Explanation } from '../wire';
import { CandidateTable } from './CandidateTable';
import { howChosen, isByCost } from './choice';
import { blocksOf } from './terms';

/** A decision in one sentence, and all its terms. */
export function Explained({ explanation }: { explanation: Explanation }) {
  const { candidates, barred, blocks, mode } = explanation;
  return (
    <div className="explained" data-testid="explained">
      <p role="status">{sentence(explanation)}</p>
      <p className="quiet">
        {modeName(mode)} routing; {count(explanation.prompt_tokens)} tokens
        {explanation.prompt_tokens_exact === false && ' (estimated)'}, {count(blocks)} whole blocks of{' '}
        {count(explanation.block_size)}. {howChosen(mode)}
      </p>
      <CandidateTable name="The decision" candidates={candidates} barred={barred} blocks={blocks} />
    </div>
  );
}

function sentence({ mode, chosen, candidates, blocks }: Explanation): string {
  if (chosen === null) return 'No worker could be chosen.';
  const name = chosen.worker === null ? DASH : shortName(chosen.worker);
  const held = `it holds ${count(chosen.held_blocks)} of ${count(blocks)} blocks and costs ${blocksOf(chosen.cost)}`;
  const next = isByCost(mode) ? candidates[1] : undefined;
  return next ? `${name}: ${held}; the next best costs ${blocksOf(next.cost)}.` : `${name}: ${held}.`;
}
