import { count } from '../format';
import type { Curve } from './frontier';
import type { Look } from './looks';
import { Marker } from './Marker';
import type { Scale } from './scale';

type Props = { curve: Curve; look: Look; scale: Scale; holdsTo: number | null };

/** One mode over the levels. Points above the axis say how high they are; the last level that holds has a ring. */
export function CurveLine({ curve, look, scale, holdsTo }: Props) {
  const line = curve.points.map(({ level, ms }) => `${scale.x(level)},${scale.y(ms)}`).join(' ');
  const last = curve.points.find((point) => point.level === holdsTo);
  return (
    <g
      className="curve"
      data-curve={curve.name}
      data-recorded={curve.recorded}
      style={{ color: look.colour }}
    >
      <polyline points={line} />
      {!curve.recorded &&
        curve.points.map(({ level, ms }) => (
          <g key={level} data-level-ms={`${level} ${Math.round(ms)}`}>
            <Marker shape={look.shape} x={scale.x(level)} y={scale.y(ms)} />
          </g>
        ))}
      {curve.points
        .filter(({ ms }) => scale.isAbove(ms))
        .map(({ level, ms }) => (
          <text key={level} x={scale.x(level)} y={scale.y(ms) - 10}>
            ↑ {count(ms)}
          </text>
        ))}
      {last && (
        <g className="curve__holds" data-testid="holds">
          <circle cx={scale.x(last.level)} cy={scale.y(last.ms)} r={13} />
          <text x={scale.x(last.level)} y={scale.y(last.ms) + 30}>
            holds to {last.level}
          </text>
        </g>
      )}
    </g>
  );
}
