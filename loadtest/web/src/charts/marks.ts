import type uPlot from 'uplot';

import type { Palette } from './palette';

/** Something that happened at a moment. */
export type ChartMark = { t: number; label: string };

const ROWS = 3;
/** Between a label and its line. */
const GAP_PX = 4;

type Label = { x: number; width: number };
/** At which side of its line a label lies, and how far down; null when there is no room for it. */
type Place = { row: number; isAtRight: boolean } | null;

/** Labels beside their lines, from left to right: those that would lie on one another take the next row. */
export function placesOf(labels: readonly Label[], rightEdge: number): Place[] {
  const ends = new Array<number>(ROWS).fill(-Infinity);
  return labels.map(({ x, width }) => {
    const isAtRight = x + width <= rightEdge;
    const from = isAtRight ? x : x - width;
    const row = ends.findIndex((end) => end <= from);
    if (row < 0) return null;
    ends[row] = from + width;
    return { row, isAtRight };
  });
}

/** Vertical lines with their labels. */
export function marksPlugin(marks: () => readonly ChartMark[], palette: Palette): uPlot.Plugin {
  return {
    hooks: {
      draw: (chart) => {
        const { ctx, bbox } = chart;
        const scale = window.devicePixelRatio;
        const size = Math.round(0.72 * palette.remPx * scale);
        const right = bbox.left + bbox.width;
        ctx.save();
        ctx.font = `${size}px ${palette.font}`;
        ctx.textBaseline = 'top';
        ctx.lineWidth = scale;
        const drawn = marks()
          .map(({ t, label }) => ({
            label,
            x: Math.round(chart.valToPos(t, 'x', true)),
            width: ctx.measureText(label).width + 2 * GAP_PX * scale,
          }))
          .filter(({ x }) => x >= bbox.left && x <= right);
        const places = placesOf(drawn, right);
        for (const [at, { x, label }] of drawn.entries()) {
          ctx.strokeStyle = palette.quiet;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          const place = places[at];
          if (!place) continue;
          const side = place.isAtRight ? 1 : -1;
          ctx.fillStyle = palette.ink;
          ctx.textAlign = place.isAtRight ? 'left' : 'right';
          ctx.fillText(label, x + side * GAP_PX * scale, bbox.top + 3 * scale + place.row * size * 1.25);
        }
        ctx.restore();
      },
    },
  };
}
