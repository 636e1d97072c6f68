import { Hint } from '../components/Hint';
import type { HintOf } from '../words';

export type Kpi = {
  label: string;
  hint: HintOf;
  value: string;
  /** Under the value, small. */
  about: string;
  /** Said where the hint is. */
  more?: string | undefined;
  level?: 'none' | 'red';
  /** As it is read aloud. */
  words?: string;
};

/** One figure, large. */
export function KpiCard({ label, hint, value, about, more, level = 'none', words }: Kpi) {
  return (
    <div className="kpi" role="group" data-testid="kpi" aria-label={words ?? `${label}: ${value}`}>
      <p className="kpi__label">
        <span data-testid="kpi-label">{label}</span>
        <Hint of={hint} name={label} more={more} />
      </p>
      <p className="kpi__value" data-testid="kpi-value" data-level={level}>
        {value}
      </p>
      <p className="kpi__about quiet small">{about}</p>
    </div>
  );
}
