// What a server would say, as the contract has it. Each function makes a new value with the changes it is given.

import type {
  Baselines,
  Figures,
  Gpu,
  Hello,
  Mark,
  Message,
  RunState,
  Sample,
  SweepProgress,
  Worker,
  Workers,
} from '../../src/wire';

type Said<T extends Message['type'], Body> = { type: T } & Body;

/** A moment in 2025, in seconds since 1970. */
export const T0 = 1_763_235_000;

export const TITLE = 'Serve More Users on the Same GPUs with KV-Aware Routing';
export const SUBTITLE = 'Kvlane: every turn goes where its cache is warm';

export function figures(change: Partial<Figures> = {}): Figures {
  return {
    ttft_p50_ms: 249,
    ttft_p95_ms: 446,
    tpot_p50_ms: 26,
    tpot_p95_ms: 27,
    itl_p50_ms: 25.6,
    itl_p95_ms: 26.9,
    e2e_p50_s: 24.3,
    e2e_p95_s: 27.7,
    tops: 2262.84,
    rps: 2.5731,
    hit_pct: 91.6,
    ...change,
  };
}

export function sample(t = T0, change: Partial<Sample> = {}): Said<'sample', Sample> {
  return {
    type: 'sample',
    t,
    figures: figures(),
    short: { ttft_p50_ms: 251, ttft_p95_ms: 452, tpot_p50_ms: 26.2, tpot_p95_ms: 27.4 },
    requests: 12_345,
    errors: 0,
    active: 60,
    kv_hit_pct: 94.31,
    kv_hit_from: 'prometheus',
    queued: 7,
    before_first_token: 4,
    ...change,
  };
}

/** As the server says it while nothing runs. */
export function emptySample(t = T0): object {
  return {
    type: 'sample',
    t,
    figures: {},
    short: {},
    requests: null,
    errors: null,
    active: 0,
    kv_hit_pct: null,
    kv_hit_from: null,
    queued: null,
    before_first_token: null,
  };
}

export function state(change: Partial<RunState> | { level: { concurrency: number } } = {}): object {
  return {
    type: 'state',
    run: 'running',
    level: { concurrency: 60 },
    mode: 'kv',
    sweep: null,
    error: null,
    ...change,
  };
}

export function mark(kind: Mark['kind'], label: string, t = T0): Said<'mark', Mark> {
  return { type: 'mark', t, kind, label };
}

export function sweepProgress(change: Partial<SweepProgress> = {}): Said<'sweep', SweepProgress> {
  return {
    type: 'sweep',
    id: 3,
    kind: 'virtual',
    state: 'running',
    done: 7,
    of: 21,
    left_s: 30,
    now: 'KV-aware at 80, repeat 1: measuring',
    error: null,
    ...change,
  };
}

export function gpu(index: string, utilPct: number | null, change: Partial<Gpu> = {}): Gpu {
  return { index, util_pct: utilPct, memory_used_mib: 129_393, memory_total_mib: 143_771, ...change };
}

export function worker(name: string, change: Partial<Worker> = {}): Worker {
  return {
    name,
    state: 'ready',
    gpus: [gpu('0', 63)],
    requests: 21,
    waiting: 1,
    slots: 64,
    kv_usage_pct: 31.2,
    cached_blocks: 9120,
    kv_blocks: 10_662,
    evicted_blocks: 182_233,
    acceptance_pct: null,
    trust: 1,
    ...change,
  };
}

export function workers(change: Partial<Workers> = {}): Said<'workers', Workers> {
  return {
    type: 'workers',
    t: T0,
    from: 'prometheus',
    prometheus: 'ok',
    gpu: 'H200 (simulated)',
    model: 'kvlane-small',
    workers: [worker('kvlane-worker-0'), worker('kvlane-worker-1'), worker('kvlane-worker-2')],
    ...change,
  };
}

export function history(rows: number, until = T0, step = 1): Hello['history'] {
  const at = (make: (row: number) => number | null) => Array.from({ length: rows }, (_, row) => make(row));
  return {
    t: Array.from({ length: rows }, (_, row) => until - (rows - 1 - row) * step),
    ttft_p50_ms: at((row) => 250 + 20 * Math.sin(row / 9)),
    ttft_p95_ms: at((row) => 450 + 60 * Math.sin(row / 13)),
    tpot_p50_ms: at((row) => 26 + Math.sin(row / 9)),
    tpot_p95_ms: at((row) => 28 + 2 * Math.sin(row / 13)),
  };
}

export function hello(change: Partial<Record<keyof Hello, unknown>> = {}): object {
  return {
    type: 'hello',
    version: '0.1.0',
    instance: '9f3c',
    brand: { title: TITLE, subtitle: SUBTITLE },
    can: { run: true, level: true, mode: true, sweep: true, explain: true, tree: true },
    objective: { ttft_ms: 600, tpot_ms: 60 },
    slider: { min: 60, max: 180, step: 20 },
    speed: 1,
    note: null,
    target: 'kvlane-small at http://127.0.0.1:8000: conversations of 3 to 5 turns',
    model: 'kvlane-small',
    window_s: 60,
    short_window_s: 15,
    history: history(0),
    marks: [],
    state: state(),
    sample: null,
    workers: null,
    sweep: null,
    ...change,
  };
}

const LEVELS = [60, 80, 100, 120, 140, 160, 180];
const RECORDED = {
  rr: {
    ttft_p50_ms: [274, 306, 342, 375, 398, 422, 413],
    ttft_p95_ms: [655, 637, 652, 643, 643, 722, 732],
    itl_p50_ms: [28, 31, 38, 45, 49, 51, 52],
    itl_p95_ms: [30, 33, 48, 50, 52, 54, 54],
    e2e_p50_s: [24.6, 29.3, 32.1, 41.2, 45.7, 45.2, 46.1],
    e2e_p95_s: [30.1, 33.4, 49, 50.4, 53, 55.4, 54.6],
  },
  kv: {
    ttft_p50_ms: [249, 267, 329, 382, 415, 424, 472],
    ttft_p95_ms: [446, 508, 547, 530, 650, 704, 3143],
    itl_p50_ms: [26, 28, 36, 43, 44, 46, 45],
    itl_p95_ms: [27, 33, 43, 46, 46, 48, 48],
    e2e_p50_s: [24.3, 26.6, 31.8, 38.1, 38.7, 40.8, 41.4],
    e2e_p95_s: [27.7, 32.5, 43.6, 47.2, 46.7, 48.1, 48.7],
  },
};

/** The recorded figures; time per output token is what they call inter-token latency. */
export function baselines(change: Partial<Baselines> = {}): Baselines {
  const row = (of: keyof typeof RECORDED, at: number) => {
    const figure = (name: keyof (typeof RECORDED)['rr']) => RECORDED[of][name][at] ?? null;
    return {
      ttft_p50_ms: figure('ttft_p50_ms'),
      ttft_p95_ms: figure('ttft_p95_ms'),
      tpot_p50_ms: figure('itl_p50_ms'),
      tpot_p95_ms: figure('itl_p95_ms'),
      itl_p50_ms: figure('itl_p50_ms'),
      itl_p95_ms: figure('itl_p95_ms'),
      e2e_p50_s: figure('e2e_p50_s'),
      e2e_p95_s: figure('e2e_p95_s'),
    };
  };
  return {
    source: 'recorded',
    replaced: false,
    about: 'Recorded: six sweeps, 300 s windows, 3 × H200, 70B model in FP8',
    objective: { ttft_ms: 600, tpot_ms: 60 },
    rows: LEVELS.map((concurrency, at) => ({ concurrency, rr: row('rr', at), kv: row('kv', at) })),
    ...change,
  };
}

/** What the style sheets must come to, as a browser computes it. */
export const COLOURS = {
  light: {
    ink: 'rgb(17, 24, 39)',
    quiet: 'rgb(75, 85, 99)',
    accent: 'rgb(11, 92, 173)',
    good: 'rgb(20, 113, 61)',
    warn: 'rgb(138, 82, 0)',
    bad: 'rgb(179, 38, 30)',
    idle: 'rgb(75, 85, 99)',
    p50: 'rgb(0, 121, 107)',
    p95: 'rgb(163, 71, 0)',
  },
  dark: {
    ink: 'rgb(240, 244, 249)',
    quiet: 'rgb(170, 182, 196)',
    accent: 'rgb(108, 178, 255)',
    good: 'rgb(95, 211, 138)',
    warn: 'rgb(242, 184, 75)',
    bad: 'rgb(255, 138, 128)',
    idle: 'rgb(170, 182, 196)',
    p50: 'rgb(79, 209, 197)',
    p95: 'rgb(246, 173, 85)',
  },
} as const;
