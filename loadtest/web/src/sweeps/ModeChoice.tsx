import { modeName } from '../names';
import type { Labels } from '../wire';

type Props = {
  offered: readonly string[];
  labels: Labels;
  chosen: readonly string[];
  onChange: (modes: string[]) => void;
};

/** Which ways of placing requests are compared, in the order they are offered. */
export function ModeChoice({ offered, labels, chosen, onChange }: Props) {
  const toggled = (mode: string) =>
    offered.filter((one) => (one === mode ? !chosen.includes(one) : chosen.includes(one)));
  return (
    <fieldset className="sweep-form__choice">
      <legend>Modes, each under the same load</legend>
      {offered.map((mode) => (
        <label key={mode}>
          <input
            type="checkbox"
            value={mode}
            checked={chosen.includes(mode)}
            onChange={() => onChange(toggled(mode))}
          />
          {modeName(mode, labels)}
        </label>
      ))}
    </fieldset>
  );
}
