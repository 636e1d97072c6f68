// What is fine, near and over. Every colour on the page is decided here.

import type { Known } from './format';

export type SloLevel = 'green' | 'yellow' | 'red' | 'none';
type GpuLevel = 'green' | 'amber' | 'red' | 'none';

/** Over the objective is red, from nine tenths of it on yellow; the objective itself is still kept. */
export function sloLevel(value: Known, slo: Known): SloLevel {
  if (value == null || slo == null || Number.isNaN(value)) return 'none';
  if (value > slo) return 'red';
  return value * 10 >= slo * 9 ? 'yellow' : 'green';
}

export function gpuLevel(utilPct: Known): GpuLevel {
  if (utilPct == null || Number.isNaN(utilPct)) return 'none';
  if (utilPct > 70) return 'red';
  return utilPct >= 30 ? 'amber' : 'green';
}

/** By how many percent KV-aware routing is faster than round robin; none without something to compare with. */
export function improvement(rr: Known, kv: Known): number | null {
  if (rr == null || kv == null || rr === 0) return null;
  return ((rr - kv) / rr) * 100;
}

export function memoryPct(usedMib: Known, totalMib: Known): number | null {
  if (usedMib == null || totalMib == null || totalMib <= 0) return null;
  return (usedMib / totalMib) * 100;
}
