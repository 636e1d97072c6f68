import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { BaselinesRefresh } from '../../src/feed/refresh';
import { baselines } from '../support/fixtures';

let said: string[];
let answers: (() => Promise<ReturnType<typeof baselines>>)[];
let asked: number;

const fails = () => Promise.reject(new Error('not read yet'));
const works = () => Promise.resolve(baselines());

function refresh(): BaselinesRefresh {
  const store = {
    compareWith: () => said.push('figures'),
    complain: (error: string) => said.push(error),
    forgive: (error?: string | null) => said.push(`forgiven: ${error}`),
  };
  return new BaselinesRefresh(store, () => {
    asked += 1;
    return (answers.shift() ?? works)();
  });
}

beforeEach(() => {
  vi.useFakeTimers();
  said = [];
  answers = [];
  asked = 0;
});
afterEach(() => {
  vi.useRealTimers();
});

describe('figures to compare with', () => {
  const complaint = 'figures to compare with: not read yet';

  test('are asked for once when they are had', async () => {
    refresh().start();
    await vi.advanceTimersByTimeAsync(60_000);
    expect([asked, said]).toEqual([1, ['figures']]);
  });

  test('are asked for again every 5 s until they are had; what is missing is said once, and taken back', async () => {
    answers = [fails, fails, works];
    refresh().start();
    await vi.advanceTimersByTimeAsync(4999);
    expect([asked, said]).toEqual([1, [complaint]]);
    await vi.advanceTimersByTimeAsync(1);
    expect([asked, said]).toEqual([2, [complaint]]);
    await vi.advanceTimersByTimeAsync(60_000);
    expect([asked, said]).toEqual([3, [complaint, 'figures', `forgiven: ${complaint}`]]);
  });

  test('are not asked for while the server is away, and at once when it is back', async () => {
    answers = [fails];
    const made = refresh();
    made.start();
    await vi.advanceTimersByTimeAsync(1000);
    made.stop();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked).toBe(1);
    made.start();
    await vi.advanceTimersByTimeAsync(0);
    expect([asked, said.at(-1)]).toEqual([2, 'figures']);
  });

  test('of a server that is gone are not taken for those of the next one', async () => {
    let late = () => {};
    answers = [() => new Promise((resolve) => (late = () => resolve(baselines())))];
    const made = refresh();
    made.start();
    made.start();
    await vi.advanceTimersByTimeAsync(0);
    late();
    await vi.advanceTimersByTimeAsync(0);
    expect([asked, said]).toEqual([2, ['figures']]);
  });
});
