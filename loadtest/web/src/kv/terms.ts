import { fixed } from '../format';
import type { Candidate } from '../wire';

/** Terms of a cost, with the class that colours each. */
export const TERMS = [
  { name: 'Prefill', key: 'prefill_cost', part: 'prefill' },
  { name: 'Decode', key: 'decode_cost', part: 'decode' },
  { name: 'Requests', key: 'requests_cost', part: 'requests' },
  { name: 'Waiting', key: 'waiting_cost', part: 'waiting' },
] as const satisfies readonly { name: string; key: keyof Candidate; part: string }[];

/** Costs in blocks: whole where they are whole. */
export function blocksOf(value: number | null): string {
  return fixed(value, value !== null && Number.isInteger(value) ? 0 : 1);
}

/** What the terms come to before the credit for the session's home. */
export function gross(candidate: Candidate): number {
  return TERMS.reduce((sum, { key }) => sum + (candidate[key] ?? 0), 0);
}
