import { describe, expect, test } from 'vitest';

import { modeName, shortName } from '../../src/names';

describe('S-172: names of workers fit on a card', () => {
  test.each([
    ['gtc-demo-0-trtllmworker-7d9f8b6c5-x2x4z', 'trtllmworker-x2x4z'],
    ['worker-7d9f8b6c54-abcde', 'worker-abcde'],
    ['kvlane-worker-2', 'kvlane-worker-2'],
    ['127.0.0.1:8101', '127.0.0.1:8101'],
    ['http://worker-0.workers:8000', 'http://worker-0.workers:8000'],
    ['kvlane-simulated-abcde', 'kvlane-simulated-abcde'],
    ['', ''],
  ])('%s is %s', (name, expected) => expect(shortName(name)).toBe(expected));
});

describe('names of modes', () => {
  test.each([
    ['round_robin', 'Round-robin'],
    ['kv', 'KV-aware'],
    ['power_of_two', 'Power of two'],
    [null, ''],
  ])('%s is %s', (mode, expected) => expect(modeName(mode)).toBe(expected));

  test('are the server’s where it has some', () => {
    const labels = { kvlane: 'KV-aware', round_robin: 'In turn' };
    expect(['kvlane', 'round_robin', 'random'].map((mode) => modeName(mode, labels))).toEqual([
      'KV-aware',
      'In turn',
      'Random',
    ]);
  });
});
