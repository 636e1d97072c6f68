import { nextChoice, useChoice } from '../hooks/useTheme';

const SIGNS = { system: '◐', light: '○', dark: '●' } as const;

/** System, light, dark, and round again. */
export function ThemeSwitch() {
  const choice = useChoice();
  const name = `Theme: ${choice}`;
  return (
    <button
      type="button"
      className="button button--quiet button--sign"
      data-testid="theme"
      aria-label={name}
      title={name}
      onClick={nextChoice}
    >
      <span aria-hidden="true">{SIGNS[choice]}</span>
    </button>
  );
}
