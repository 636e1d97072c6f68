import { DataTable } from '../components/DataTable';
import { Judged } from '../dashboard/Judged';
import { count, fixed, percent } from '../format';
import { modeName } from '../names';
import type { Labels, SweepResults, SweepSet } from '../wire';
import { levelsOf, mean, modesOf } from './frontier';

type Props = { set: SweepSet; objective: SweepResults['objective']; labels: Labels };

/** What is measured so far, averaged over repeats; rows come as cells do. */
export function CellTable({ set, objective, labels }: Props) {
  const modes = modesOf(set);
  const rows = levelsOf(set).flatMap((level) =>
    modes.filter((mode) => has(set, mode, level)).map((mode) => ({ mode, level })),
  );
  return (
    <DataTable
      name="Results"
      caption={`Means over repeats; a level counts ${set.levels_are}`}
      className="cells"
    >
      <thead>
        <tr>
          <th scope="col">Level</th>
          <th scope="col" className="left">
            Mode
          </th>
          <th scope="col">TTFT p50 (ms)</th>
          <th scope="col">TTFT p95 (ms)</th>
          <th scope="col">ITL p95 (ms)</th>
          <th scope="col">Latency p95 (s)</th>
          <th scope="col">Tokens/s</th>
          <th scope="col">Cached</th>
          <th scope="col">Repeats</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ mode, level }) => {
          const figure = (metric: Parameters<typeof mean>[3]) =>
            mean(set, mode, level, metric)?.value ?? null;
          return (
            <tr key={`${level} ${mode}`} data-testid="cell">
              <th scope="row">{level}</th>
              <td className="left">
                {modeName(mode, labels)} <Remark set={set} mode={mode} level={level} />
              </td>
              <td>{fixed(figure('ttft_p50_ms'), 0)}</td>
              <Judged
                className="judged"
                value={figure('ttft_p95_ms')}
                slo={objective.ttft_s * 1000}
                digits={0}
              />
              <Judged
                className="judged"
                value={figure('itl_p95_ms')}
                slo={objective.tpot_s * 1000}
                digits={1}
              />
              <td>{fixed(figure('e2e_p95_s'), 1)}</td>
              <td>{fixed(figure('tops'), 0)}</td>
              <td>{percent(figure('hit_pct'))}</td>
              <td>{count(mean(set, mode, level, 'ttft_p95_ms')?.of ?? 0)}</td>
            </tr>
          );
        })}
      </tbody>
    </DataTable>
  );
}

function has(set: SweepSet, mode: string, level: number): boolean {
  return set.cells.some((cell) => cell.mode === mode && cell.level === level);
}

/** Why some of it does not count, or was more than could be served. */
function Remark({ set, mode, level }: { set: SweepSet; mode: string; level: number }) {
  const cells = set.cells.filter((cell) => cell.mode === mode && cell.level === level);
  const invalid = cells.find((cell) => cell.invalid !== null)?.invalid;
  const saturated = cells.find((cell) => cell.saturated !== null)?.saturated;
  const remark = invalid ? `not counted: ${invalid}` : saturated ? `saturated: ${saturated}` : null;
  return remark === null ? null : <small className="cells__remark">{remark}</small>;
}
