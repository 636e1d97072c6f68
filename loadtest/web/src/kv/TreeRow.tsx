import { Meter } from '../components/Meter';
import { VisuallyHidden } from '../components/VisuallyHidden';
import { count } from '../format';
import type { TreeNode } from '../wire';
import { heldBy } from './outline';

type Props = { node: TreeNode; depth: number; workers: readonly string[]; inColumns: boolean };

/** One run of blocks with a bar for each worker that holds a part of it. */
export function TreeRow({ node, depth, workers, inColumns }: Props) {
  const range = `blocks ${count(node.start + 1)} to ${count(node.start + node.blocks)}`;
  return (
    <tr data-testid="tree-node" data-depth={depth}>
      <th scope="row">
        <span className="tree__name" style={{ paddingLeft: `${depth * 1.25}rem` }}>
          {depth > 0 && (
            <>
              <span className="tree__branch" aria-hidden="true">
                └
              </span>
              <VisuallyHidden>{`level ${depth + 1}: `}</VisuallyHidden>
            </>
          )}
          {node.topic ?? range}
          {node.topic !== null && <small className="quiet"> {range}</small>}
        </span>
      </th>
      <td>{count(node.blocks)}</td>
      <td>{count(node.below)}</td>
      {inColumns ? (
        workers.map((worker) => (
          <HeldCell key={worker} worker={worker} held={heldBy(node, worker)} of={node.blocks} />
        ))
      ) : (
        <td>
          {count(node.holders.length)} of {count(workers.length)} workers
        </td>
      )}
    </tr>
  );
}

function HeldCell({ worker, held, of }: { worker: string; held: number; of: number }) {
  return (
    <td className="tree__held" data-held={held}>
      <span>{count(held)}</span>
      <Meter
        label={`held by ${worker}`}
        value={held}
        max={of}
        words={`${count(held)} of ${count(of)} blocks`}
        level="green"
      />
    </td>
  );
}
