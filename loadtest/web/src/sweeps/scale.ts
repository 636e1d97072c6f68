/** Where the plot lies within its drawing. */
export const FRAME = { width: 1180, height: 420, left: 64, right: 1160, top: 24, bottom: 370 } as const;

export type Scale = {
  x: (level: number) => number;
  y: (ms: number) => number;
  isAbove: (ms: number) => boolean;
};

/** Levels from left to right with a little room at both ends, times from the bottom up; what is too high lies at the top. */
export function scaleOf(levels: readonly number[], ceiling: number): Scale {
  const least = Math.min(...levels);
  const most = Math.max(...levels);
  const room = 30;
  const span = FRAME.right - FRAME.left - 2 * room;
  return {
    x: (level) => FRAME.left + room + (most > least ? ((level - least) / (most - least)) * span : span / 2),
    y: (ms) => FRAME.bottom - (Math.min(ms, ceiling) / ceiling) * (FRAME.bottom - FRAME.top),
    isAbove: (ms) => ms > ceiling,
  };
}
