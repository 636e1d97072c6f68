import { Badge, type BadgeTone } from '../components/Badge';
import { count, percent } from '../format';
import { shortName } from '../names';
import type { Worker } from '../wire';
import { GpuBox } from './GpuBox';

const TONES: Record<string, BadgeTone> = { ready: 'good', joining: 'warn', draining: 'warn', down: 'bad' };

/** One worker: its GPUs and what it carries. */
export function WorkerCard({ worker }: { worker: Worker }) {
  const figures: [string, string][] = [
    ['In flight', of(worker.requests, worker.slots)],
    ['Waiting', count(worker.waiting)],
    ['KV cache used', percent(worker.kv_usage_pct)],
    ['Blocks cached', of(worker.cached_blocks, worker.kv_blocks)],
    ['Blocks evicted', count(worker.evicted_blocks)],
  ];
  if (worker.trust !== null && worker.trust < 1)
    figures.push(['Index trust', percent(worker.trust * 100, 0)]);
  if (worker.acceptance_pct !== null) figures.push(['Drafts accepted', percent(worker.acceptance_pct)]);
  return (
    <li className="worker" data-testid="worker">
      <div className="worker__head">
        <h3 title={worker.name}>{shortName(worker.name)}</h3>
        {worker.state !== null && <Badge tone={TONES[worker.state] ?? 'idle'}>{worker.state}</Badge>}
      </div>
      {worker.gpus.length > 0 && (
        <ul className="worker__gpus">
          {worker.gpus.map((gpu) => (
            <GpuBox key={gpu.index} gpu={gpu} />
          ))}
        </ul>
      )}
      <dl className="worker__figures">
        {figures.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </li>
  );
}

/** `21 of 64`; the whole is left out where it is not known. */
function of(part: number | null, whole: number | null): string {
  return part !== null && whole !== null ? `${count(part)} of ${count(whole)}` : count(part);
}
