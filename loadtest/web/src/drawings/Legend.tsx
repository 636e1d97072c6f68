import { Arrow, type Flow } from './Arrow';

type Props = { x: number; y: number; entries: readonly (readonly [Flow, string])[] };

/** What each kind of line stands for. */
export function Legend({ x, y, entries }: Props) {
  return (
    <g className="drawing-legend">
      {entries.map(([flow, meaning], at) => {
        const middle = y + at * 22;
        return (
          <g key={flow}>
            <Arrow flow={flow} way={`${x},${middle} ${x + 44},${middle}`} />
            <text x={x + 56} y={middle + 5}>
              {meaning}
            </text>
          </g>
        );
      })}
    </g>
  );
}
