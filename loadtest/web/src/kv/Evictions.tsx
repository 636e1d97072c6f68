import { DataTable } from '../components/DataTable';
import { count, DASH, fixed } from '../format';
import { shortName } from '../names';
import type { Tree } from '../wire';
import { evictionRates } from './outline';

type Props = { before: Tree | null; now: Tree };

/** What each cache holds, and how fast it lets go of blocks to make room. */
export function Evictions({ before, now }: Props) {
  const rates = evictionRates(before, now);
  return (
    <DataTable
      name="Evictions"
      caption="Caches: blocks held, evicted since the engine began, and evicted now"
    >
      <thead>
        <tr>
          <th scope="col">Worker</th>
          <th scope="col">Cached blocks</th>
          <th scope="col">Evicted</th>
          <th scope="col">Evicted per second</th>
        </tr>
      </thead>
      <tbody>
        {now.workers.map((worker) => {
          const rate = rates.get(worker.name) ?? null;
          return (
            <tr key={worker.name} data-testid="evictions">
              <th scope="row" title={worker.name}>
                {shortName(worker.name)}
              </th>
              <td>{count(worker.cached_blocks)}</td>
              <td>{count(worker.evicted_blocks)}</td>
              <td>{rate === null ? DASH : `${fixed(rate, 1)} /s`}</td>
            </tr>
          );
        })}
      </tbody>
    </DataTable>
  );
}
