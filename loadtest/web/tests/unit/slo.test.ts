import { describe, expect, test } from 'vitest';

import { gpuLevel, improvement, memoryPct, sloLevel } from '../../src/slo';

describe('S-152: over the objective is red, from nine tenths of it on yellow', () => {
  test.each([
    [539.9, 600, 'green'],
    [540, 600, 'yellow'],
    [600, 600, 'yellow'],
    [600.1, 600, 'red'],
    [53.9, 60, 'green'],
    [54, 60, 'yellow'],
    [60, 60, 'yellow'],
    [60.1, 60, 'red'],
    [0, 600, 'green'],
  ])('%d ms of %d ms is %s', (value, slo, expected) => expect(sloLevel(value, slo)).toBe(expected));

  test.each([
    [67.4, 75, 'green'],
    [67.5, 75, 'yellow'],
    [75, 75, 'yellow'],
    [75.1, 75, 'red'],
    [6.7, 7.5, 'green'],
    [6.75, 7.5, 'yellow'],
    [7.6, 7.5, 'red'],
  ])('at eight times the speed %d ms of %d ms is %s', (value, slo, expected) =>
    expect(sloLevel(value, slo)).toBe(expected),
  );

  test.each([
    [null, 600],
    [undefined, 600],
    [NaN, 600],
    [500, null],
    [500, undefined],
  ])('%s of %s is not judged', (value, slo) => expect(sloLevel(value, slo)).toBe('none'));
});

describe('S-173: GPUs', () => {
  test.each([
    [0, 'green'],
    [29.9, 'green'],
    [30, 'amber'],
    [70, 'amber'],
    [70.1, 'red'],
    [100, 'red'],
    [null, 'none'],
    [NaN, 'none'],
  ])('%s percent busy is %s', (value, expected) => expect(gpuLevel(value)).toBe(expected));
});

describe('S-174: memory', () => {
  test('is the share of the whole', () => {
    expect(memoryPct(129_393, 129_393 + 14_378)).toBeCloseTo(90, 2);
    expect(memoryPct(0, 100)).toBe(0);
  });
  test.each([
    [null, 100],
    [100, null],
    [0, 0],
  ])('%s of %s is not known', (used, total) => expect(memoryPct(used, total)).toBeNull());
});

describe('S-170: improvement', () => {
  test('is positive when KV-aware is faster, and nothing without something to compare with', () => {
    expect(improvement(200, 100)).toBe(50);
    expect(improvement(100, 200)).toBe(-100);
    expect(improvement(100, 100)).toBe(0);
    expect(improvement(0, 10)).toBeNull();
    expect(improvement(null, 10)).toBeNull();
    expect(improvement(10, undefined)).toBeNull();
  });
});
