// Light or dark: as the system has it unless somebody chose.

import { useSyncExternalStore } from 'react';

const CHOICES = ['system', 'light', 'dark'] as const;
type Choice = (typeof CHOICES)[number];
type Theme = 'light' | 'dark';

/** public/theme.js reads it before the first paint; what it found is where the style sheets look. */
const KEY = 'kvlane.theme';
const systemIsDark = window.matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set<() => void>();
let choice: Choice = CHOICES.find((known) => known === document.documentElement.dataset.theme) ?? 'system';

/** Storage may be forbidden; the choice then lasts as long as the page. */
function keep(): void {
  try {
    window.localStorage.setItem(KEY, choice);
  } catch {
    return;
  }
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  systemIsDark.addEventListener('change', listener);
  return () => {
    listeners.delete(listener);
    systemIsDark.removeEventListener('change', listener);
  };
}

export function nextChoice(): void {
  choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length] ?? 'system';
  keep();
  if (choice === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  for (const listener of listeners) listener();
}

export function useChoice(): Choice {
  return useSyncExternalStore(subscribe, () => choice);
}

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, () =>
    choice === 'system' ? (systemIsDark.matches ? 'dark' : 'light') : choice,
  );
}
