type Point = readonly [number, number];

/** What moves along it; each has its own colour and its own dashes. */
export type Flow = 'request' | 'events' | 'metrics';

export type ArrowProps = {
  flow: Flow;
  /** Its corners from end to end, as SVG writes them: `20,10 80,10`. */
  way: string;
  /** Things move back along it too. */
  both?: boolean;
  label?: { text: string; at: Point; below?: string };
};

const HEAD = 9;
const CORNER = 10;

/** A line with a head, round at its corners. Heads are drawn, not markers: markers cannot take a line's colour everywhere. */
export function Arrow({ flow, way, both = false, label }: ArrowProps) {
  const points = corners(way);
  const [first, second, beforeLast, last] = [points.at(0), points.at(1), points.at(-2), points.at(-1)];
  if (!first || !second || !beforeLast || !last) return null;
  const trimmed = [
    both ? towards(first, second, HEAD) : first,
    ...points.slice(1, -1),
    towards(last, beforeLast, HEAD),
  ];
  return (
    <g className={`arrow arrow-${flow}`}>
      <path d={rounded(trimmed)} />
      <polygon points={head(beforeLast, last)} />
      {both && <polygon points={head(second, first)} />}
      {label && (
        <text className="arrow-label" x={label.at[0]} y={label.at[1] - 9}>
          {label.text}
        </text>
      )}
      {label?.below !== undefined && (
        <text className="arrow-label" x={label.at[0]} y={label.at[1] + 20}>
          {label.below}
        </text>
      )}
    </g>
  );
}

function corners(way: string): Point[] {
  return way.split(' ').map((corner) => {
    const [x = 0, y = 0] = corner.split(',').map(Number);
    return [x, y];
  });
}

/** The point `by` away from one on the way to another. */
function towards(from: Point, to: Point, by: number): Point {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy) || 1;
  return [from[0] + (dx / length) * by, from[1] + (dy / length) * by];
}

function head(from: Point, tip: Point): string {
  const foot = towards(tip, from, HEAD + 2);
  const [dx, dy] = [((tip[0] - foot[0]) / 2) * 0.9, ((tip[1] - foot[1]) / 2) * 0.9];
  const triangle: Point[] = [tip, [foot[0] - dy, foot[1] + dx], [foot[0] + dy, foot[1] - dx]];
  return triangle.map(shown).join(' ');
}

function rounded(points: readonly Point[]): string {
  const steps = points.map((point, at) => {
    const [before, after] = [points[at - 1], points[at + 1]];
    if (!before) return `M${shown(point)}`;
    if (!after) return `L${shown(point)}`;
    return `L${shown(towards(point, before, CORNER))} Q${shown(point)} ${shown(towards(point, after, CORNER))}`;
  });
  return steps.join(' ');
}

function shown([x, y]: Point): string {
  return `${x.toFixed(1)},${y.toFixed(1)}`;
}
