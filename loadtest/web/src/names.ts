// Names of pods as they fit on a card.

/** NAME-TEMPLATE HASH-FIVE LETTERS, as a deployment names its pods. */
const OF_A_DEPLOYMENT = /^(?:.*-)?([a-z0-9]+)-(?=[a-z0-9]*[0-9])[a-z0-9]{8,10}-([a-z0-9]{5})$/;

/** What a pod is, and which of them; every other name as it is. */
export function shortName(name: string): string {
  const parts = OF_A_DEPLOYMENT.exec(name);
  return parts ? `${parts[1]}-${parts[2]}` : name;
}

/** Routing modes as people call them; others as they are. */
const MODES: Record<string, string> = { round_robin: 'Round-robin', kv: 'KV-aware' };

export function modeName(mode: string | null): string {
  return mode === null ? '' : (MODES[mode] ?? mode.replaceAll('_', ' '));
}
