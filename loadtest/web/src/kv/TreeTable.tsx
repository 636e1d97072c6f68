import { useState } from 'react';

import { DataTable } from '../components/DataTable';
import { count } from '../format';
import { shortName } from '../names';
import type { Tree } from '../wire';
import { rows } from './outline';
import { TreeRow } from './TreeRow';

/** What fits on a screen; the rest is there on demand. */
const FEW = 12;
/** More workers than this are counted instead of having a column each. */
const MOST_COLUMNS = 6;

/** The largest prefixes, each beneath the one it continues, and who holds how much of it. */
export function TreeTable({ tree }: { tree: Tree }) {
  const [all, setAll] = useState(false);
  const found = rows(tree.nodes);
  const shown = all ? found : found.slice(0, FEW);
  const workers = tree.workers.map((worker) => worker.name);
  const inColumns = workers.length <= MOST_COLUMNS;
  if (found.length === 0)
    return (
      <p className="quiet" data-testid="tree-note">
        {tree.note ?? 'The tree is empty: no engine has said that it stored anything.'}
      </p>
    );
  return (
    <div>
      <DataTable
        name="Prefixes"
        caption="Top prefixes and who holds them, in blocks; refreshed every 2 s"
        className="tree"
      >
        <thead>
          <tr>
            <th scope="col">Prefix</th>
            <th scope="col">Blocks</th>
            <th scope="col">With all below</th>
            {inColumns ? (
              workers.map((worker) => (
                <th key={worker} scope="col" title={worker}>
                  {shortName(worker)}
                </th>
              ))
            ) : (
              <th scope="col">Held by</th>
            )}
          </tr>
        </thead>
        <tbody>
          {shown.map(({ node, depth }) => (
            <TreeRow key={node.id} node={node} depth={depth} workers={workers} inColumns={inColumns} />
          ))}
        </tbody>
      </DataTable>
      <p className="tree__rest quiet">
        {tree.left_out > 0 && <span>{count(tree.left_out)} smaller nodes are left out.</span>}
        {found.length > FEW && (
          <button
            type="button"
            className="button button--small"
            aria-expanded={all}
            onClick={() => setAll(!all)}
          >
            {all ? 'Show the largest only' : `Show all ${count(found.length)}`}
          </button>
        )}
      </p>
    </div>
  );
}
