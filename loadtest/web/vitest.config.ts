import { defineConfig } from 'vitest/config';

const everywhere = { environment: 'node', testTimeout: 30_000, hookTimeout: 60_000 } as const;

export default defineConfig({
  test: {
    // One file at a time: a browser beside another on two cores makes times that mean nothing.
    pool: 'forks',
    maxWorkers: 1,
    fileParallelism: false,
    projects: [
      { test: { ...everywhere, name: 'unit', include: ['tests/unit/**/*.test.ts'] } },
      { test: { ...everywhere, name: 'browser', include: ['tests/browser/**/*.test.ts'] } },
      { test: { ...everywhere, name: 'e2e', include: ['tests/e2e/**/*.test.ts'], testTimeout: 300_000 } },
    ],
  },
});
