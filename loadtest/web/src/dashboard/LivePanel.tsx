import { Card } from '../components/Card';
import { useFeed } from '../feed/useFeed';
import { comparisonAt } from './comparison';
import { ConcurrencySlider } from './ConcurrencySlider';
import { LatencyCharts } from './LatencyCharts';
import { LiveTable } from './LiveTable';
import { ModeSwitch } from './ModeSwitch';
import { SloLine } from './SloLine';
import { useConcurrency } from './useConcurrency';

/** The load as it runs, beside what was recorded at the same level. */
export function LivePanel() {
  const choice = useConcurrency();
  const baselines = useFeed((world) => world.baselines);
  const note = useFeed((world) => world.hello?.note ?? null);
  const target = useFeed((world) => world.hello?.target ?? null);
  return (
    <Card title="Live vs Round-Robin" aside={<SloLine />} className="live">
      <div className="live__controls">
        <ConcurrencySlider choice={choice} />
        <ModeSwitch />
      </div>
      <div className="live__grid">
        <div className="live__figures">
          <LiveTable comparison={comparisonAt(baselines, choice.shown)} />
          {note !== null && (
            <p className="live__note small" data-testid="note">
              {note}
            </p>
          )}
          {target !== null && <p className="quiet small">{target}</p>}
        </div>
        <LatencyCharts />
      </div>
    </Card>
  );
}
