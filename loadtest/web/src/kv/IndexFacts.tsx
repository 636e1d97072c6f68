import { bytes, count } from '../format';
import type { IndexFigures } from '../wire';

/** How large the index is, and what passed through it. */
export function IndexFacts({ index }: { index: IndexFigures }) {
  const facts = [
    ['Nodes', count(index.nodes)],
    ['Distinct blocks', count(index.distinct_blocks)],
    ['Expected blocks', count(index.predicted_blocks)],
    ['Memory', bytes(index.bytes)],
    ['Stored so far', count(index.stored_blocks_total)],
    ['Removed so far', count(index.removed_blocks_total)],
  ] as const;
  return (
    <dl className="index-facts" data-testid="index-facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
