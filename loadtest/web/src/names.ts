// Names of pods as they fit on a card, and of modes as people call them.

import type { Labels } from './wire';

/** NAME-TEMPLATE HASH-FIVE LETTERS, as a deployment names its pods. */
const OF_A_DEPLOYMENT = /^(?:.*-)?([a-z0-9]+)-(?=[a-z0-9]*[0-9])[a-z0-9]{8,10}-([a-z0-9]{5})$/;

/** What a pod is, and which of them; every other name as it is. */
export function shortName(name: string): string {
  const parts = OF_A_DEPLOYMENT.exec(name);
  return parts ? `${parts[1]}-${parts[2]}` : name;
}

const MODES: Record<string, string> = { round_robin: 'Round-robin', kv: 'KV-aware' };

/** A mode by the server's label for it, else by our own, else by its id in words. */
export function modeName(mode: string | null, labels: Labels = {}): string {
  return mode === null ? '' : (labels[mode] ?? MODES[mode] ?? inWords(mode));
}

function inWords(id: string): string {
  return `${id.slice(0, 1).toUpperCase()}${id.slice(1).replaceAll('_', ' ')}`;
}
