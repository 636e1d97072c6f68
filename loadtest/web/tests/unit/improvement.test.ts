import { describe, expect, test } from 'vitest';

import { signedPercent } from '../../src/format';
import { improvement, sloLevel } from '../../src/slo';
import { baselines } from '../support/fixtures';

/** Conversations at a time; then round robin, KV-aware, their levels and the gain: of TTFT, then of TPOT. */
const EXPECTED = [
  [60, 655, 'red', 446, 'green', '+31.9%', 30, 'green', 27, 'green', '+10.0%'],
  [80, 637, 'red', 508, 'green', '+20.3%', 33, 'green', 33, 'green', '+0.0%'],
  [100, 652, 'red', 547, 'yellow', '+16.1%', 48, 'green', 43, 'green', '+10.4%'],
  [120, 643, 'red', 530, 'green', '+17.6%', 50, 'green', 46, 'green', '+8.0%'],
  [140, 643, 'red', 650, 'red', '-1.1%', 52, 'green', 46, 'green', '+11.5%'],
  [160, 722, 'red', 704, 'red', '+2.5%', 54, 'yellow', 48, 'green', '+11.1%'],
  [180, 732, 'red', 3143, 'red', '-329.4%', 54, 'yellow', 48, 'green', '+11.1%'],
] as const;

describe('S-169, S-170: what was recorded', () => {
  const { rows, objective } = baselines();
  test.each(EXPECTED.map((row, at) => [row[0], at] as const))('at %d conversations', (concurrency, at) => {
    const { rr, kv } = rows[at]!;
    const judged = (value: number | null | undefined, slo: number) => [value, sloLevel(value, slo)];
    expect([
      rows[at]?.concurrency,
      ...judged(rr?.ttft_p95_ms, objective.ttft_ms),
      ...judged(kv?.ttft_p95_ms, objective.ttft_ms),
      signedPercent(improvement(rr?.ttft_p95_ms, kv?.ttft_p95_ms)),
      ...judged(rr?.tpot_p95_ms, objective.tpot_ms),
      ...judged(kv?.tpot_p95_ms, objective.tpot_ms),
      signedPercent(improvement(rr?.tpot_p95_ms, kv?.tpot_p95_ms)),
    ]).toEqual(EXPECTED.find(([level]) => level === concurrency));
  });

  test('nothing to compare with is a dash', () => {
    expect(signedPercent(improvement(0, 12))).toBe('—');
    expect(signedPercent(improvement(null, 12))).toBe('—');
  });
});
