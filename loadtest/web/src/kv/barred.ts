/** Why a worker could not be chosen, by the router's word for it. */
const REASONS: Record<string, string> = {
  joining: 'has not shown yet that it serves',
  draining: 'takes no new requests',
  down: 'does not answer',
  breaker: 'failed too often of late',
  tried: 'was asked already',
  full: 'has no free slot',
  crowded: 'has no room even to wait',
};

export function reasonInWords(barred: string): string {
  return REASONS[barred] ?? barred;
}
