import { Card } from '../components/Card';
import { Hint } from '../components/Hint';
import { useFeed } from '../feed/useFeed';
import { BaselineSource } from './BaselineSource';
import { BenchmarkTable } from './BenchmarkTable';

/** The comparison that stands, whatever runs. */
export function Benchmark() {
  const baselines = useFeed((world) => world.baselines);
  const about = (
    <>
      Improvement: KV over RR
      <Hint of="improvement" name="improvement" />
    </>
  );
  return (
    <Card title="Static Benchmark Comparison" aside={about}>
      {baselines === null ? (
        <p className="quiet">Nothing to compare with yet.</p>
      ) : (
        <>
          <BenchmarkTable baselines={baselines} />
          <BaselineSource baselines={baselines} />
        </>
      )}
    </Card>
  );
}
