/** A worker as a cost sees it, in blocks. */
export type Holding = { worker: string; cached: number; inUse: number };

export const PROMPT_BLOCKS = 100;

/** Three workers who could take a prompt of a hundred blocks: the one with most of it cached is also the least busy. */
export const WORKED_EXAMPLE: readonly Holding[] = [
  { worker: 'Worker 1', cached: 20, inUse: 10 },
  { worker: 'Worker 2', cached: 75, inUse: 5 },
  { worker: 'Worker 3', cached: 10, inUse: 9 },
];

/** The plain cost, with weight one: what is left to compute, and what is in use already. */
export function plainCost({ cached, inUse }: Holding): number {
  return PROMPT_BLOCKS - cached + inUse;
}

export function cheapest(of: readonly Holding[]): Holding | undefined {
  return [...of].sort((one, other) => plainCost(one) - plainCost(other))[0];
}
