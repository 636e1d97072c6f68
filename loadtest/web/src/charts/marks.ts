import type uPlot from 'uplot';

import type { Palette } from './palette';

/** Something that happened at a moment. */
export type ChartMark = { t: number; label: string };

const ROWS = 3;

/** Vertical lines with their labels; labels that would lie on one another take the next row. */
export function marksPlugin(marks: () => readonly ChartMark[], palette: Palette): uPlot.Plugin {
  return {
    hooks: {
      draw: (chart) => {
        const { ctx, bbox } = chart;
        const scale = window.devicePixelRatio;
        const size = Math.round(0.72 * palette.remPx * scale);
        const right = bbox.left + bbox.width;
        const taken: number[] = new Array<number>(ROWS).fill(-Infinity);
        ctx.save();
        ctx.font = `${size}px ${palette.font}`;
        ctx.textBaseline = 'top';
        ctx.lineWidth = scale;
        for (const mark of marks()) {
          const x = Math.round(chart.valToPos(mark.t, 'x', true));
          if (x < bbox.left || x > right) continue;
          ctx.strokeStyle = palette.quiet;
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          const width = ctx.measureText(mark.label).width + 8 * scale;
          const row = taken.findIndex((end) => end <= x);
          if (row < 0) continue;
          taken[row] = x + width;
          const fits = x + width <= right;
          ctx.fillStyle = palette.ink;
          ctx.textAlign = fits ? 'left' : 'right';
          ctx.fillText(mark.label, x + (fits ? 4 : -4) * scale, bbox.top + 3 * scale + row * size * 1.25);
        }
        ctx.restore();
      },
    },
  };
}
