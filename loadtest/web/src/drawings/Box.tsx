import type { ReactNode } from 'react';

/** A room holds parts; a chosen one is where the request goes; an optional one may be missing. */
type BoxKind = 'room' | 'part' | 'chosen' | 'optional';

export type BoxProps = {
  /** Left, top, width and height. */
  at: readonly [number, number, number, number];
  title: string;
  lines?: readonly string[];
  kind?: BoxKind;
  children?: ReactNode;
};

const PADDING = 14;
const TITLE_BASELINE = 27;
const LINE_HEIGHT = 19;

/** A named rectangle with a few short lines under its name. */
export function Box({ at: [x, y, width, height], title, lines = [], kind = 'part', children }: BoxProps) {
  const left = x + PADDING;
  return (
    <g className={`box box-${kind}`} data-box={title}>
      <rect x={x} y={y} width={width} height={height} rx={10} />
      <text className="box-title" x={left} y={y + TITLE_BASELINE}>
        {title}
      </text>
      {lines.map((line, row) => (
        <text key={line} className="box-line" x={left} y={y + TITLE_BASELINE + (row + 1) * LINE_HEIGHT + 2}>
          {line}
        </text>
      ))}
      {children}
    </g>
  );
}
