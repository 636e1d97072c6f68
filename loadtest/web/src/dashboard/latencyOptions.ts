import type uPlot from 'uplot';

import { axis, type ChartOptions } from '../charts/UPlot';
import { marksPlugin, type ChartMark } from '../charts/marks';
import type { Palette } from '../charts/palette';
import { sloLine } from '../charts/slo-line';
import { clock } from '../format';

/** What changes while a chart stays: looked at whenever it is drawn. */
export type Drawn = { slo: number | null; marks: readonly ChartMark[]; from: number; until: number };

const TIME_STEPS_S = [10, 30, 60, 120, 300, 600, 1200];
/** Room above the highest figure, for the labels of marks. */
const HEADROOM = 1.25;

/** How a latency is drawn over time. `hover` hears of the row one points at. */
export function latencyOptions(
  palette: Palette,
  drawn: { readonly current: Drawn },
  hover: (row: number | null) => void,
): ChartOptions {
  // Lines differ by width as well, for those who see no difference in their colours.
  const line = (stroke: string, width: number): uPlot.Series => ({ stroke, width, points: { show: false } });
  const top = (most: number) => Math.max(most, drawn.current.slo ?? 0, 1) * HEADROOM;
  return {
    legend: { show: false },
    // The last time is written under the right edge and needs room beyond it.
    padding: [palette.remPx / 2, 1.25 * palette.remPx, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
    scales: {
      x: { time: true, range: () => [drawn.current.from, drawn.current.until] },
      y: { range: (_, __, most) => [0, top(most ?? 0)] },
    },
    axes: [
      axis(palette, {
        size: 1.6 * palette.remPx,
        space: 4 * palette.remPx,
        incrs: TIME_STEPS_S,
        values: (_, splits) => splits.map(timeOf),
      }),
      axis(palette, { size: 2.6 * palette.remPx, space: 2.4 * palette.remPx, gap: 6 }),
    ],
    series: [{}, line(palette.p50, 0.1 * palette.remPx), line(palette.p95, 0.16 * palette.remPx)],
    plugins: [
      sloLine(() => drawn.current.slo, palette),
      marksPlugin(() => drawn.current.marks, palette),
      { hooks: { setCursor: (chart) => hover(chart.cursor.idx ?? null) } },
    ],
  };
}

/** Whole minutes without their seconds. */
function timeOf(t: number): string {
  return t % 60 === 0 ? clock(t).slice(0, 5) : clock(t);
}
