// Light or dark: as the system has it unless somebody chose.

import { useSyncExternalStore } from 'react';

export const CHOICES = ['system', 'light', 'dark'] as const;
export type Choice = (typeof CHOICES)[number];
export type Theme = 'light' | 'dark';

const KEY = 'kvlane.theme';
const systemIsDark = window.matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set<() => void>();
let choice: Choice = kept();

/** Storage may be forbidden; the choice then lasts as long as the page. */
function kept(): Choice {
  try {
    const found = window.localStorage.getItem(KEY);
    return CHOICES.find((known) => known === found) ?? 'system';
  } catch {
    return 'system';
  }
}

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

/** What the style sheets go by. */
export function applyTheme(): void {
  if (choice === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

export function nextChoice(): void {
  choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length] ?? 'system';
  keep();
  applyTheme();
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
