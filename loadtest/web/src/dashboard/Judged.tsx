import { fixed, type Known } from '../format';
import { sloLevel, type SloLevel } from '../slo';

const SIGNS: Partial<Record<SloLevel, { sign: string; words: string }>> = {
  red: { sign: '▲', words: 'over SLO' },
  yellow: { sign: '●', words: 'near SLO' },
};

type JudgedProps = { value: Known; slo: Known; digits: number; className: string };

/** A cell held against the objective. Its colour is said by a sign as well. */
export function Judged({ value, slo, digits, className }: JudgedProps) {
  const level = sloLevel(value, slo);
  const sign = SIGNS[level];
  return (
    <td className={className} data-level={level}>
      {fixed(value, digits)}
      <span className="level-sign">
        {sign && (
          <span role="img" aria-label={sign.words}>
            {sign.sign}
          </span>
        )}
      </span>
    </td>
  );
}
