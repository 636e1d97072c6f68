import { defineConfig } from 'vitest/config';

const everywhere = {
  environment: 'node',
  testTimeout: 30_000,
  hookTimeout: 60_000,
  // Vitest waits one second. A browser on a busy machine can take longer to show what it was told.
  expect: { poll: { timeout: 15_000 } },
} as const;
/** Their figures mean something only when nothing else runs. */
const ALONE = ['tests/browser/heap.test.ts', 'tests/browser/paint.test.ts'];

export default defineConfig({
  test: {
    pool: 'forks',
    // One project after the other. A browser beside another makes a test slower, and two of them faster.
    projects: [
      {
        test: {
          ...everywhere,
          name: 'unit',
          include: ['tests/unit/**/*.test.ts'],
          maxWorkers: 2,
          sequence: { groupOrder: 0 },
        },
      },
      {
        test: {
          ...everywhere,
          name: 'browser',
          include: ['tests/browser/**/*.test.ts'],
          exclude: ALONE,
          maxWorkers: 2,
          sequence: { groupOrder: 1 },
        },
      },
      { test: { ...everywhere, name: 'alone', include: ALONE, maxWorkers: 1, sequence: { groupOrder: 2 } } },
      {
        test: {
          ...everywhere,
          name: 'e2e',
          include: ['tests/e2e/**/*.test.ts'],
          testTimeout: 300_000,
          maxWorkers: 1,
          sequence: { groupOrder: 3 },
        },
      },
    ],
  },
});
