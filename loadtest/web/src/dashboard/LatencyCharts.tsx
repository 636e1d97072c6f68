import { useState } from 'react';

import { useFeed } from '../feed/useFeed';
import { LatencyChart } from './LatencyChart';

const SPANS_MIN = [5, 15, 30];
const HEIGHT_REM = 14;

/** Both latencies, over the same time. */
export function LatencyCharts() {
  const [spanMin, setSpanMin] = useState(5);
  const isDown = useFeed((world) => world.connection === 'down');
  const objective = useFeed((world) => world.hello?.objective ?? null);
  const windowS = useFeed((world) => world.hello?.short_window_s ?? null);
  const shared = { spanS: spanMin * 60, heightRem: HEIGHT_REM };
  return (
    <div className="charts">
      <div className="charts__head">
        <span className="quiet small">each point: the last {windowS ?? 15} s</span>
        <div className="charts__spans" role="group" aria-label="Time shown">
          {SPANS_MIN.map((minutes) => (
            <button
              key={minutes}
              type="button"
              className="button button--small"
              aria-pressed={minutes === spanMin}
              onClick={() => setSpanMin(minutes)}
            >
              {minutes} min
            </button>
          ))}
        </div>
      </div>
      <div className="charts__pair" data-stale={isDown}>
        <LatencyChart
          name="TTFT"
          p50="ttft_p50_ms"
          p95="ttft_p95_ms"
          digits={0}
          slo={objective?.ttft_ms ?? null}
          {...shared}
        />
        <LatencyChart
          name="TPOT"
          p50="tpot_p50_ms"
          p95="tpot_p95_ms"
          digits={1}
          slo={objective?.tpot_ms ?? null}
          {...shared}
        />
      </div>
    </div>
  );
}
