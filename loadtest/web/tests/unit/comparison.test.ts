import { describe, expect, test } from 'vitest';

import { atSpeed, comparisonAt, concurrencyOf } from '../../src/dashboard/comparison';
import { baselines } from '../support/fixtures';

describe('S-149: the recorded row of the same load', () => {
  test.each([
    [60, 60, true],
    [120, 120, true],
    [6, 60, false],
    [70, 60, false],
    [71, 80, false],
    [500, 180, false],
  ])('of %d conversations is that of %d', (concurrency, expected, isExact) => {
    const found = comparisonAt(baselines(), concurrency);
    expect([found?.row.concurrency, found?.isExact]).toEqual([expected, isExact]);
  });

  test('is none without recordings, and for a load by rate', () => {
    expect(comparisonAt(null, 60)).toBeNull();
    expect(comparisonAt(baselines({ rows: [] }), 60)).toBeNull();
    expect(comparisonAt(baselines(), concurrencyOf({ concurrency: null, rate: 2.5 }))).toBeNull();
    expect(concurrencyOf({ concurrency: 80, rate: null })).toBe(80);
  });

  test('has its times divided by the speed, and nothing else', () => {
    const rr = baselines().rows[0]!.rr;
    expect(atSpeed(rr, 1)).toBe(rr);
    const fast = atSpeed(rr, 8);
    expect(fast).toMatchObject({ ttft_p95_ms: 655 / 8, tpot_p95_ms: 30 / 8, e2e_p50_s: 24.6 / 8 });
    expect(fast).toMatchObject({ tops: 2146.9, rps: 2.6, hit_pct: 90.9 });
    expect(atSpeed(null, 8)).toBeNull();
  });
});
