import { useCallback, useMemo, useRef, useState } from 'react';
import type uPlot from 'uplot';

import { Chart } from '../charts/UPlot';
import type { Palette } from '../charts/palette';
import type { Column } from '../feed/series';
import { useFeed } from '../feed/useFeed';
import { ms, objectiveMs } from '../format';
import { useSlow } from '../hooks/useSlow';
import { drawnMarks } from './drawnMarks';
import { latencyOptions, type Drawn } from './latencyOptions';
import { LatestRows } from './LatestRows';

type LatencyChartProps = {
  name: string;
  p50: Column;
  p95: Column;
  digits: number;
  slo: number | null;
  spanS: number;
  heightRem: number;
};

const LABEL_EVERY_MS = 5000;

/** One latency over time with its objective and what happened meanwhile. */
export function LatencyChart({ name, p50, p95, digits, slo, spanS, heightRem }: LatencyChartProps) {
  const series = useFeed((world) => world.series);
  const version = useFeed((world) => world.seriesVersion);
  const windowS = useFeed((world) => world.hello?.short_window_s ?? null);
  const allMarks = useFeed((world) => world.marks);
  const [hovered, setHovered] = useState<number | null>(null);

  const until = series.lastT() ?? Date.now() / 1000;
  const from = until - spanS;
  const marks = useMemo(() => drawnMarks(allMarks, from), [allMarks, from]);
  const data = useMemo(
    () => series.since(from, ['t', p50, p95]),
    // The series changes in place, its version with it; marks and objective are drawn with the data.
    [series, version, from, p50, p95, marks, slo],
  );
  const drawn = useRef<Drawn>({ slo, marks, from, until });
  drawn.current = { slo, marks, from, until };
  const options = useCallback((palette: Palette) => latencyOptions(palette, drawn, setHovered), []);

  const last = (data[0]?.length ?? 0) - 1;
  const row = hovered !== null && hovered <= last ? hovered : last;
  const value = (column: number, at: number) => ms(data[column]?.[at], digits);
  const label = `${name} of the last ${windowS ?? 15} s, p50 ${value(1, last)}, p95 ${value(2, last)}, SLO ${objectiveMs(slo)}`;
  const spoken = useSlow(last < 0 ? null : label, LABEL_EVERY_MS);

  return (
    <figure className="chart">
      <figcaption className="chart__head">
        <h3>{name}</h3>
        <span className="legend small">
          <Key of="p50" value={value(1, row)} />
          <Key of="p95" value={value(2, row)} />
        </span>
      </figcaption>
      <div
        role="img"
        aria-label={spoken ?? `${name}, nothing yet`}
        data-testid={`chart-${name}`}
        data-slo={slo ?? ''}
        data-marks={marks.length}
      >
        <Chart options={options} data={data as uPlot.AlignedData} heightRem={heightRem} />
      </div>
      <LatestRows name={name} data={data} digits={digits} />
    </figure>
  );
}

function Key({ of, value }: { of: 'p50' | 'p95'; value: string }) {
  return (
    <span>
      <span className={`legend__line legend__line--${of}`} aria-hidden="true" />
      {of} <strong>{value}</strong>
    </span>
  );
}
