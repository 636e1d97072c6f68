import type { Curve } from './frontier';

export type Shape = 'circle' | 'square' | 'diamond' | 'triangle';
export type Look = { colour: string; shape: Shape };

/** The two that are always compared keep their colours; others take what is left. Shapes differ for who does not see colours. */
const KNOWN: Record<string, Look> = {
  round_robin: { colour: 'var(--rr)', shape: 'square' },
  kvlane: { colour: 'var(--accent)', shape: 'circle' },
  'Recorded round-robin': { colour: 'var(--rr)', shape: 'square' },
  'Recorded KV-aware': { colour: 'var(--accent)', shape: 'circle' },
};
const OTHERS: readonly Look[] = [
  { colour: 'var(--p50)', shape: 'triangle' },
  { colour: 'var(--p95)', shape: 'diamond' },
  { colour: 'var(--quiet)', shape: 'square' },
  { colour: 'var(--good)', shape: 'circle' },
];

export function looksOf(curves: readonly Curve[]): Map<string, Look> {
  const others = curves.filter((curve) => !(curve.name in KNOWN));
  return new Map(
    curves.map((curve) => {
      const look = KNOWN[curve.name] ?? OTHERS[others.indexOf(curve) % OTHERS.length];
      return [curve.name, look ?? { colour: 'var(--quiet)', shape: 'circle' }];
    }),
  );
}
