import type uPlot from 'uplot';

import { faded, type Palette } from './palette';

/** The objective as a line, and what is above it as a shade. */
export function sloLine(slo: () => number | null, palette: Palette): uPlot.Plugin {
  return {
    hooks: {
      // Below the series: they are what one looks at.
      drawClear: (chart) => {
        const at = slo();
        if (at === null) return;
        const { ctx, bbox } = chart;
        const y = Math.round(chart.valToPos(at, 'y', true));
        if (y <= bbox.top) return;
        const scale = window.devicePixelRatio;
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        ctx.fillStyle = faded(palette.bad, 0.12);
        ctx.fillRect(bbox.left, bbox.top, bbox.width, y - bbox.top);
        ctx.strokeStyle = palette.bad;
        ctx.lineWidth = 2 * scale;
        ctx.setLineDash([6 * scale, 4 * scale]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.fillStyle = palette.bad;
        ctx.font = `600 ${Math.round(0.75 * palette.remPx * scale)}px ${palette.font}`;
        ctx.textAlign = 'right';
        ctx.textBaseline = 'bottom';
        ctx.fillText('SLO', bbox.left + bbox.width - 4 * scale, y - 3 * scale);
        ctx.restore();
      },
    },
  };
}
