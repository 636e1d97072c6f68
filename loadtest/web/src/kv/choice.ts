/** Whether a mode of the router takes the worker of the lowest cost. */
export function isByCost(mode: string | null): boolean {
  return mode === 'kv';
}

/** How a mode came to its choice, said beside costs. */
export function howChosen(mode: string | null): string {
  if (isByCost(mode)) return 'Costs are in blocks; the lowest wins.';
  const way = mode === 'round_robin' ? 'takes workers in turn' : 'does not choose by cost';
  return `This mode ${way}; costs are shown for comparison.`;
}
