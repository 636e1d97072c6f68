import { describe, expect, test } from 'vitest';

import { comparisonAt, concurrencyOf, dividedBy, divisor } from '../../src/dashboard/comparison';
import { readMessage, type Hello } from '../../src/wire';
import { baselines, hello } from '../support/fixtures';

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

  test('has its times divided, and nothing where nothing is known', () => {
    const rr = { ...baselines().rows[0]!.rr!, itl_p50_ms: null };
    expect(dividedBy(1, rr)).toEqual(rr);
    expect(dividedBy(8, rr)).toMatchObject({
      ttft_p95_ms: 655 / 8,
      tpot_p95_ms: 30 / 8,
      e2e_p50_s: 24.6 / 8,
      itl_p50_ms: null,
    });
    expect(dividedBy(8, null)).toBeNull();
  });
});

describe('recorded times are divided by the speed of this load', () => {
  const own = { ttft_ms: 75, tpot_ms: 7.5 };
  const fast = (change: object = {}) =>
    readMessage(hello({ speed: 8, objective: own, ...change })) as unknown as Hello;
  const sweep = { source: 'sweep', objective: own } as const;

  test.each([
    ['nothing is recorded', null, 8],
    ['they were recorded', baselines(), 8],
    [
      'they are of a file like the recording, whatever its objective',
      baselines({ ...sweep, source: 'file' }),
      8,
    ],
    ['they are of a sweep on another clock', baselines({ source: 'sweep' }), 8],
    ['a sweep shares one objective only', baselines({ ...sweep, objective: { ...own, tpot_ms: 60 } }), 8],
    ['they are of a sweep on this clock', baselines(sweep), 1],
    [
      'its objective lost a digit on the way',
      baselines({ ...sweep, objective: { ttft_ms: 75.00000000000001, tpot_ms: 7.5 } }),
      1,
    ],
  ])('when %s', (_, compared, expected) => expect(divisor(compared, fast())).toBe(expected));

  test('which is one for engines as fast as the recorded ones', () => {
    expect(divisor(baselines(), fast({ speed: 1 }))).toBe(1);
  });
});
