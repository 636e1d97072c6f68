import { Card } from '../components/Card';
import { useFeed } from '../feed/useFeed';
import { modeName } from '../names';
import type { SweepDetail, SweepResults, SweepSet } from '../wire';
import { CellTable } from './CellTable';
import { Downloads } from './Downloads';
import { FrontierChart } from './FrontierChart';
import { measuredCurves, recordedCurves } from './frontier';
import { useLivePoint } from './useLivePoint';

/** What a sweep came to so far: how far each mode holds, its figures, and files to take along. */
export function SweepResultsPart({ sweep, results }: { sweep: SweepDetail; results: SweepResults }) {
  return (
    <>
      {results.sets.map((set) => (
        <Frontier key={set.name} sweep={sweep} results={results} set={set} />
      ))}
      <Card title="Figures" aside={results.source}>
        {results.sets.map((set) => (
          <CellTable key={set.name} set={set} objective={results.objective} labels={sweep.labels} />
        ))}
      </Card>
      <Card title="Download">
        <Downloads id={sweep.id} />
      </Card>
    </>
  );
}

function Frontier({ sweep, results, set }: { sweep: SweepDetail; results: SweepResults; set: SweepSet }) {
  const baselines = useFeed((world) => world.baselines);
  const live = useLivePoint(sweep.kind);
  const recorded = sweep.recorded && baselines?.source === 'recorded' ? recordedCurves(baselines) : [];
  return (
    <Card title="SLO frontier" aside={set.name.replaceAll('_', ' ')}>
      <FrontierChart
        curves={[...recorded, ...measuredCurves(set)]}
        objective={results.objective.ttft_s * 1000}
        standings={sweep.standings}
        labels={sweep.labels}
        live={live}
      />
      <ul className="standings" aria-label="How far each mode holds">
        {sweep.standings.map(({ mode, words }) => (
          <li key={mode} data-testid="standing">
            <strong>{modeName(mode, sweep.labels)}</strong>: {words}
          </li>
        ))}
      </ul>
      <p className="quiet">{set.about}</p>
    </Card>
  );
}
