import { useFeed } from '../feed/useFeed';
import { objectiveMs } from '../format';

/** What was promised. */
export function SloLine() {
  const objective = useFeed((world) => world.hello?.objective ?? null);
  return (
    <p data-testid="slo">
      SLO: TTFT p95 &lt; {objectiveMs(objective?.ttft_ms)}, TPOT p95 &lt; {objectiveMs(objective?.tpot_ms)}
    </p>
  );
}
