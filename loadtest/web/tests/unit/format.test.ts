import { describe, expect, test } from 'vitest';

import * as format from '../../src/format';

describe('what is not known is a dash', () => {
  test.each([null, undefined, NaN, Infinity])('%s', (value) => {
    const { fixed, count, ms, objectiveMs, seconds, percent, signedPercent, duration, clock, bytes } = format;
    const shown = [
      fixed(value, 2),
      ...[count, ms, objectiveMs, seconds, percent, signedPercent, duration, clock, bytes].map((of) =>
        of(value),
      ),
    ];
    expect(shown).toEqual(shown.map(() => '—'));
  });
});

describe('numbers', () => {
  test.each([
    [format.fixed(2.5731, 2), '2.57'],
    [format.fixed(2262.84, 1), '2,262.8'],
    [format.fixed(-0.01, 1), '0.0'],
    [format.count(12_345), '12,345'],
    [format.count(0), '0'],
    [format.ms(412.4), '412 ms'],
    [format.ms(28.06, 1), '28.1 ms'],
    [format.objectiveMs(600), '600 ms'],
    [format.objectiveMs(7.5), '7.5 ms'],
    [format.objectiveMs(149.99999999999997), '150 ms'],
    [format.seconds(24.55), '24.6 s'],
    [format.percent(94.31), '94.3%'],
    [format.percent(96.2, 0), '96%'],
    [format.signedPercent(31.908), '+31.9%'],
    [format.signedPercent(-1.088), '-1.1%'],
    [format.signedPercent(0), '+0.0%'],
    [format.signedPercent(-0.01), '+0.0%'],
    [format.signedPercent(-1329.37), '-1,329.4%'],
    [format.duration(0), '0 s'],
    [format.duration(41.2), '41 s'],
    [format.duration(59.6), '1 min 0 s'],
    [format.duration(125), '2 min 5 s'],
    [format.duration(11_240), '3 h 7 min'],
    [format.duration(-1), '—'],
    [format.bytes(512), '512 B'],
    [format.bytes(1_468_006), '1.4 MiB'],
  ])('%s is %s', (shown, expected) => expect(shown).toBe(expected));

  test('a time of day has two digits each', () => {
    const at = new Date(2025, 10, 15, 4, 5, 9).getTime() / 1000;
    expect(format.clock(at)).toBe('04:05:09');
  });
});
