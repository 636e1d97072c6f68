import { describe, expect, test } from 'vitest';

import { CAPACITY, Series, type Row } from '../../src/feed/series';
import { history } from '../support/fixtures';

function row(t: number, ttft: number | null = t): Row {
  return {
    t,
    ttft_p50_ms: ttft,
    ttft_p95_ms: null,
    tpot_p50_ms: null,
    tpot_p95_ms: 60,
  };
}

function buffersOf(series: Series): ArrayBufferLike[] {
  const { columns } = series as unknown as { columns: Record<string, Float64Array> };
  return Object.values(columns).map((column) => column.buffer);
}

describe('a series', () => {
  test('gives back what it was given, oldest first, with null for what is not known', () => {
    const series = new Series(4);
    series.push(row(1, 10));
    series.push(row(2, null));
    series.push(row(3, 30));
    expect(series.since(0, ['t', 'ttft_p50_ms', 'tpot_p95_ms'])).toEqual([
      [1, 2, 3],
      [10, null, 30],
      [60, 60, 60],
    ]);
    expect(series.since(2, ['t'])).toEqual([[2, 3]]);
    expect([series.firstT(), series.lastT(), series.length]).toEqual([1, 3, 3]);
  });

  test('goes round and keeps the latest', () => {
    const series = new Series(4);
    for (let t = 1; t <= 11; t += 1) series.push(row(t));
    expect(series.since(0, ['t', 'ttft_p50_ms'])).toEqual([
      [8, 9, 10, 11],
      [8, 9, 10, 11],
    ]);
    expect(series.isFull).toBe(true);
  });

  test('puts a row that is not later in the place of the last one', () => {
    const series = new Series(4);
    series.push(row(5, 1));
    series.push(row(5, 2));
    series.push(row(3, 3));
    series.push(row(6, 4));
    expect(series.since(0, ['t', 'ttft_p50_ms'])).toEqual([
      [5, 6],
      [3, 4],
    ]);
  });

  test('is replaced by the latest of a history', () => {
    const series = new Series(10);
    series.push(row(1));
    series.replace(history(25, 1000));
    expect(series.length).toBe(10);
    expect([series.firstT(), series.lastT()]).toEqual([991, 1000]);
    series.clear();
    expect([series.length, series.firstT(), series.lastT()]).toEqual([0, null, null]);
  });

  test('has nothing where nothing came for more than ten seconds', () => {
    const series = new Series(10);
    series.push(row(1, 10));
    series.push(row(11, 20));
    series.push(row(60, 30));
    expect(series.since(0, ['t', 'ttft_p50_ms'])).toEqual([
      [1, 11, 12, 60],
      [10, 20, null, 30],
    ]);
  });

  test('does not grow with a day of samples: the same buffers hold them', () => {
    const series = new Series();
    const before = buffersOf(series);
    for (let t = 1; t <= 100_000; t += 1) series.push(row(t));
    expect(series.length).toBe(CAPACITY);
    expect(buffersOf(series).every((buffer, at) => buffer === before[at])).toBe(true);
    expect(before.reduce((sum, { byteLength }) => sum + byteLength, 0)).toBe(5 * CAPACITY * 8);
    expect(series.since(0, ['t'])[0]).toHaveLength(CAPACITY);
  });
});
