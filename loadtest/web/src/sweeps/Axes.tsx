import { count, objectiveMs } from '../format';
import { step } from './frontier';
import { FRAME, type Scale } from './scale';

type Props = { levels: readonly number[]; ceiling: number; objective: number; scale: Scale };

/** Levels below, milliseconds at the left, and what must not be exceeded. */
export function Axes({ levels, ceiling, objective, scale }: Props) {
  const by = step(ceiling);
  const ticks = Array.from({ length: Math.floor(ceiling / by) + 1 }, (_, at) => at * by);
  const { left, right, top, bottom } = FRAME;
  return (
    <g className="axes">
      <rect className="axes__over" x={left} y={top} width={right - left} height={scale.y(objective) - top} />
      {ticks.map((tick) => (
        <g key={tick}>
          <path d={`M${left},${scale.y(tick)} H${right}`} />
          <text className="axes__tick" x={left - 10} y={scale.y(tick) + 5}>
            {count(tick)}
          </text>
        </g>
      ))}
      {levels.map((level) => (
        <text key={level} className="axes__level" x={scale.x(level)} y={bottom + 22}>
          {level}
        </text>
      ))}
      <text className="axes__level" x={(left + right) / 2} y={bottom + 46}>
        conversations at a time
      </text>
      <g className="axes__objective" data-slo={objective}>
        <path d={`M${left},${scale.y(objective)} H${right}`} />
        <text x={right - 8} y={scale.y(objective) - 8}>
          SLO {objectiveMs(objective)}
        </text>
      </g>
    </g>
  );
}
