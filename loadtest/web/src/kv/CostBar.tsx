import type { Candidate } from '../wire';
import { TERMS } from './terms';

type Props = { candidate: Candidate; longest: number };

/** A cost as a bar of its terms, as long as it is beside the highest one. The table beside it has the figures. */
export function CostBar({ candidate, longest }: Props) {
  return (
    <span className="cost-bar" aria-hidden="true">
      {TERMS.map(({ key, part }) => {
        const share = longest > 0 ? ((candidate[key] ?? 0) / longest) * 100 : 0;
        return (
          share > 0 && (
            <span key={part} className="cost-bar__part" data-part={part} style={{ width: `${share}%` }} />
          )
        );
      })}
    </span>
  );
}
