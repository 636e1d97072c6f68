import { DataTable } from '../components/DataTable';
import { Hint } from '../components/Hint';
import { useConnected, useFeed } from '../feed/useFeed';
import { count, fixed } from '../format';
import type { Objective, RecordedTimes } from '../wire';
import type { HintOf } from '../words';
import { dividedBy, divisor, type Comparison } from './comparison';
import { Judged } from './Judged';

type Line = {
  name: string;
  unit: string;
  hint: HintOf;
  digits: number;
  p50: keyof RecordedTimes;
  p95: keyof RecordedTimes;
  objective?: keyof Objective;
};

const LINES: readonly Line[] = [
  {
    name: 'TTFT',
    unit: 'ms',
    hint: 'ttft',
    digits: 0,
    p50: 'ttft_p50_ms',
    p95: 'ttft_p95_ms',
    objective: 'ttft_ms',
  },
  {
    name: 'TPOT',
    unit: 'ms',
    hint: 'tpot',
    digits: 1,
    p50: 'tpot_p50_ms',
    p95: 'tpot_p95_ms',
    objective: 'tpot_ms',
  },
  { name: 'ITL', unit: 'ms', hint: 'itl', digits: 1, p50: 'itl_p50_ms', p95: 'itl_p95_ms' },
  { name: 'Latency', unit: 's', hint: 'latency', digits: 1, p50: 'e2e_p50_s', p95: 'e2e_p95_s' },
];

const COLUMNS = ['Live p50', 'KV p50', 'RR p50', 'Live p95', 'KV p95', 'RR p95'];

/** Live figures between the recorded ones. There is no table before there is an answer. */
export function LiveTable({ comparison }: { comparison: Comparison | null }) {
  const figures = useFeed((world) => world.sample?.figures ?? null);
  const hello = useFeed((world) => world.hello);
  const baselines = useFeed((world) => world.baselines);
  const connected = useConnected();
  const isStopped = useFeed((world) => world.state?.run === 'stopped' && world.hello?.can.run === true);
  if (hello === null || figures === null || figures.ttft_p50_ms === null) {
    return (
      <p className="live__empty quiet" data-testid="no-answers">
        No answers yet{isStopped ? ': press Start to run the load.' : '.'}
      </p>
    );
  }
  const by = divisor(baselines, hello);
  const kv = dividedBy(by, comparison?.row.kv ?? null);
  const rr = dividedBy(by, comparison?.row.rr ?? null);
  return (
    <DataTable
      name="Live figures beside recorded ones"
      caption={captionOf(hello.window_s, comparison, by)}
      className={connected ? 'live-table' : 'live-table stale'}
    >
      <thead>
        <tr>
          <td />
          {COLUMNS.map((column) => (
            <th key={column} scope="col" className={classOf(column)}>
              {column}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {LINES.map((line) => (
          <tr key={line.name}>
            <th scope="row">
              <span data-testid="row-name">
                {line.name} ({line.unit})
              </span>
              <Hint of={line.hint} name={line.name} />
            </th>
            <td className="live">{fixed(figures[line.p50], line.digits)}</td>
            <td className="recorded">{fixed(kv?.[line.p50], line.digits)}</td>
            <td className="recorded">{fixed(rr?.[line.p50], line.digits)}</td>
            <Judged
              className="live"
              value={figures[line.p95]}
              slo={line.objective && hello.objective[line.objective]}
              digits={line.digits}
            />
            <td className="recorded">{fixed(kv?.[line.p95], line.digits)}</td>
            <td className="recorded">{fixed(rr?.[line.p95], line.digits)}</td>
          </tr>
        ))}
      </tbody>
    </DataTable>
  );
}

function classOf(column: string): string {
  if (!column.startsWith('Live')) return 'recorded';
  return column === 'Live p95' ? 'live judged' : 'live';
}

function captionOf(windowS: number, comparison: Comparison | null, by: number): string {
  const parts = [`live: last ${windowS} s`];
  if (comparison === null) parts.push('nothing recorded to compare with');
  else if (comparison.isExact)
    parts.push(`KV and RR: recorded at ${count(comparison.row.concurrency)} conversations`);
  else parts.push(`nearest recorded level: ${comparison.row.concurrency}`);
  if (comparison !== null && by !== 1) parts.push(`recorded times divided by ${by}`);
  return parts.join(' · ');
}
