import { Card } from '../components/Card';
import { useConnected, useFeed } from '../feed/useFeed';
import { count, duration, fixed, percent } from '../format';
import { useNow } from '../hooks/useNow';
import type { Sample } from '../wire';
import { HIT_FROM } from '../words';
import { KpiCard, type Kpi } from './KpiCard';

/** Six figures in one row. Without a load that runs there are none. */
export function KpiRow() {
  const connected = useConnected();
  // One that starts has none yet: what is known is of the load before it.
  const isOver = useFeed(
    ({ state }) => state === null || state.run === 'stopped' || state.run === 'starting',
  );
  const latest = useFeed((world) => world.sample);
  const sample = isOver ? null : latest;
  const sampleAt = useFeed((world) => world.sampleAt);
  const isStale = !connected && sample !== null;
  const now = useNow(isStale ? 1000 : null);
  const age = isStale && sampleAt !== null ? Math.max(0, (now - sampleAt) / 1000) : null;
  return (
    <Card
      title="Metrics"
      aside={age === null ? undefined : <span data-testid="age">as of {duration(age)} ago</span>}
    >
      <div className="kpis" data-testid="kpis" data-stale={isStale}>
        {kpisOf(sample).map((kpi) => (
          <KpiCard key={kpi.label} {...kpi} />
        ))}
      </div>
    </Card>
  );
}

function kpisOf(sample: Sample | null): Kpi[] {
  const errors = sample?.errors ?? null;
  const from = sample?.kv_hit_from ? HIT_FROM[sample.kv_hit_from] : null;
  const waiting = sample?.before_first_token ?? null;
  return [
    { label: 'RPS', hint: 'rps', value: fixed(sample?.figures.rps, 2), about: 'requests per second' },
    { label: 'Requests', hint: 'requests', value: count(sample?.requests), about: 'since Start' },
    { label: 'TOPS', hint: 'tops', value: fixed(sample?.figures.tops, 1), about: 'tokens per second' },
    {
      label: 'KV Cache Hit',
      hint: 'hit',
      value: percent(sample?.kv_hit_pct),
      about: from ?? 'of input tokens',
      more: from === null ? undefined : `This figure is ${from}.`,
    },
    {
      label: 'Queued',
      hint: 'queued',
      value: count(sample?.queued),
      about: waiting === null ? 'for a slot' : `${count(waiting)} before first token`,
    },
    {
      label: 'Errors',
      hint: 'errors',
      value: count(errors),
      about: 'since Start',
      level: errors !== null && errors > 0 ? 'red' : 'none',
      words: errors === null ? 'Errors: —' : `${count(errors)} ${errors === 1 ? 'error' : 'errors'}`,
    },
  ];
}
