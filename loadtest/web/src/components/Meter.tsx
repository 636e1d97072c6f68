type MeterProps = {
  label: string;
  /** From 0 to `max`; nothing is drawn when it is not known. */
  value: number | null;
  max?: number;
  /** The value as it is read aloud. */
  words: string;
  level?: string;
};

/** A bar that is as long as its value. */
export function Meter({ label, value, max = 100, words, level = 'none' }: MeterProps) {
  const share = value === null || max <= 0 ? 0 : Math.min(1, Math.max(0, value / max));
  return (
    <div
      className="meter"
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={max}
      aria-valuenow={value === null ? 0 : Math.min(max, Math.max(0, value))}
      aria-valuetext={words}
      data-level={level}
    >
      <div className="meter__bar" style={{ width: `${share * 100}%` }} />
    </div>
  );
}
