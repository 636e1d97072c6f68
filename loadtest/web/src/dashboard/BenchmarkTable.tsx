import { memo } from 'react';

import { DataTable } from '../components/DataTable';
import { VisuallyHidden } from '../components/VisuallyHidden';
import { signedPercent } from '../format';
import { improvement } from '../slo';
import type { BaselineRow, Baselines } from '../wire';
import { Judged } from './Judged';

const GROUPS = [
  { name: 'TTFT p95', figure: 'ttft_p95_ms', objective: 'ttft_ms' },
  { name: 'TPOT p95', figure: 'tpot_p95_ms', objective: 'tpot_ms' },
] as const;
type Group = (typeof GROUPS)[number];

/** What was measured before. It does not change with the load, nor with its speed. */
export const BenchmarkTable = memo(function BenchmarkTable({ baselines }: { baselines: Baselines }) {
  return (
    <DataTable
      name="Static benchmark comparison"
      caption="Latencies at the 95th percentile in ms, by conversations at a time"
      hideCaption
      className="benchmark"
    >
      <colgroup />
      <colgroup span={3} />
      <colgroup span={3} />
      <thead>
        <tr>
          <th scope="col" rowSpan={2}>
            Concurrency
          </th>
          {GROUPS.map(({ name }) => (
            <th key={name} scope="colgroup" colSpan={3} className="group">
              {name} <span className="unit">(ms)</span>
            </th>
          ))}
        </tr>
        <tr>
          {GROUPS.flatMap(({ name }) =>
            ['RR', 'KV', 'Improvement'].map((column) => (
              <th key={name + column} scope="col" className={classOf(column)}>
                <VisuallyHidden>{name} </VisuallyHidden>
                {column}
              </th>
            )),
          )}
        </tr>
      </thead>
      <tbody>
        {baselines.rows.map((row) => (
          <tr key={row.concurrency}>
            <th scope="row">{row.concurrency}</th>
            {GROUPS.map((group) => (
              <Cells key={group.name} group={group} row={row} baselines={baselines} />
            ))}
          </tr>
        ))}
      </tbody>
    </DataTable>
  );
});

function classOf(column: string): string {
  if (column === 'Improvement') return '';
  return column === 'RR' ? 'judged group-start' : 'judged';
}

function Cells({ group, row, baselines }: { group: Group; row: BaselineRow; baselines: Baselines }) {
  const rr = row.rr?.[group.figure];
  const kv = row.kv?.[group.figure];
  const slo = baselines.objective[group.objective];
  const digits = digitsOf(group, baselines);
  return (
    <>
      <Judged className="judged group-start" value={rr} slo={slo} digits={digits} />
      <Judged className="judged" value={kv} slo={slo} digits={digits} />
      <td className="improvement">{signedPercent(improvement(rr, kv))}</td>
    </>
  );
}

/** Recorded figures are whole milliseconds; a sweep's tokens are told apart by tenths. */
function digitsOf({ figure }: Group, { rows }: Baselines): number {
  if (figure === 'ttft_p95_ms') return 0;
  const isWhole = rows.every(({ rr, kv }) => [rr, kv].every((of) => Number.isInteger(of?.[figure] ?? 0)));
  return isWhole ? 0 : 1;
}
