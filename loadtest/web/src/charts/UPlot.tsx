// The one place that knows how a chart lives: made, given data, resized, coloured anew, taken away.

import { useEffect, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';

import { useTheme } from '../hooks/useTheme';
import { readPalette, readRemPx, type Palette } from './palette';

export type ChartOptions = Omit<uPlot.Options, 'width' | 'height'>;

type ChartProps = {
  /** Keep it the same function: another one makes another chart. */
  options: (palette: Palette) => ChartOptions;
  data: uPlot.AlignedData;
  /** In rem, so that a booth's screen has larger ones. */
  heightRem: number;
};

export function Chart({ options, data, heightRem }: ChartProps) {
  const theme = useTheme();
  const [remPx, setRemPx] = useState(readRemPx);
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const latest = useRef(data);

  useEffect(() => {
    latest.current = data;
    chart.current?.setData(data);
  }, [data]);

  useEffect(() => {
    const within = place.current;
    if (!within) return undefined;
    const palette = readPalette();
    const size = () => ({ width: Math.max(1, within.clientWidth), height: heightRem * palette.remPx });
    const made = new uPlot({ ...options(palette), ...size() }, latest.current, within);
    chart.current = made;
    const observer = new ResizeObserver(() => {
      // A window that became a booth's has other sizes throughout.
      setRemPx(readRemPx());
      made.setSize(size());
    });
    observer.observe(within);
    return () => {
      observer.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [options, heightRem, theme, remPx]);

  return (
    <div className="chart__canvas" ref={place} style={{ height: `${heightRem}rem` }} aria-hidden="true" />
  );
}

/** Axes as all our charts have them. */
export function axis(palette: Palette, more: uPlot.Axis = {}): uPlot.Axis {
  const size = Math.round(0.8 * palette.remPx);
  return {
    stroke: palette.quiet,
    font: `${size}px ${palette.font}`,
    grid: { stroke: palette.hair, width: 1 },
    ticks: { show: false },
    ...more,
  };
}
