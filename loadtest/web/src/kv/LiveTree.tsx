import { useState } from 'react';

import { api } from '../api';
import { Complaint } from '../components/Complaint';
import { usePolling } from '../hooks/usePolling';
import type { Tree } from '../wire';
import { Evictions } from './Evictions';
import { IndexFacts } from './IndexFacts';
import { TreeTable } from './TreeTable';

const EVERY_MS = 2000;

/** The router's tree, looked at every two seconds while this page is open. */
export function LiveTree() {
  const { data, complaint } = usePolling(api.tree, EVERY_MS);
  const before = useBefore(data);
  return (
    <div className="live-tree">
      {complaint !== null && <Complaint>{complaint}</Complaint>}
      {data === null && complaint === null && <p className="quiet">Loading</p>}
      {data !== null && (
        <>
          <IndexFacts index={data.index} />
          <TreeTable tree={data} />
          <Evictions before={before} now={data} />
        </>
      )}
    </div>
  );
}

/** The answer before this one. */
function useBefore(now: Tree | null): Tree | null {
  const [pair, setPair] = useState<{ before: Tree | null; now: Tree | null }>({ before: null, now });
  if (pair.now !== now) setPair({ before: pair.now, now });
  return pair.now === now ? pair.before : pair.now;
}
