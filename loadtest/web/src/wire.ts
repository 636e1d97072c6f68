// Everything the server says, as types with their readers. Latencies are in ms or s as their names say, `t`, `at` and
// `started` in seconds since 1970. What is not known is null.

import { flag, list, maybe, number, object, oneOf, or, text, type Read, type Reader } from './reader';

export const objective = object({ ttft_ms: number, tpot_ms: number });
export type Objective = Read<typeof objective>;

// The feed

export const figures = object({
  ttft_p50_ms: maybe(number),
  ttft_p95_ms: maybe(number),
  tpot_p50_ms: maybe(number),
  tpot_p95_ms: maybe(number),
  itl_p50_ms: maybe(number),
  itl_p95_ms: maybe(number),
  e2e_p50_s: maybe(number),
  e2e_p95_s: maybe(number),
  tops: maybe(number),
  rps: maybe(number),
  hit_pct: maybe(number),
  goodput_pct: maybe(number),
  error_pct: maybe(number),
  requests: maybe(number),
});
export type Figures = Read<typeof figures>;

const shortFigures = object({
  ttft_p50_ms: maybe(number),
  ttft_p95_ms: maybe(number),
  tpot_p50_ms: maybe(number),
  tpot_p95_ms: maybe(number),
  tops: maybe(number),
  hit_pct: maybe(number),
});

export const sample = object({
  t: number,
  figures,
  short: shortFigures,
  requests: maybe(number),
  errors: maybe(number),
  active: maybe(number),
  kv_hit_pct: maybe(number),
  kv_hit_from: maybe(oneOf('prometheus', 'router', 'client')),
  queued: maybe(number),
  before_first_token: maybe(number),
});
export type Sample = Read<typeof sample>;

const column = list(maybe(number));
export const history = object({
  t: list(number),
  ttft_p50_ms: column,
  ttft_p95_ms: column,
  tpot_p50_ms: column,
  tpot_p95_ms: column,
  tops: column,
  hit_pct: column,
  active: column,
});
export type History = Read<typeof history>;

export const mark = object({
  t: number,
  kind: oneOf('start', 'stop', 'level', 'mode', 'reset'),
  label: text,
});
export type Mark = Read<typeof mark>;

/** Either this many conversations at a time, or this many new ones a second. */
const level = object({ concurrency: maybe(number), rate: maybe(number) });
export type LoadLevel = Read<typeof level>;

export const runState = object({
  run: oneOf('stopped', 'starting', 'running', 'stopping'),
  since: maybe(number),
  level: maybe(level),
  mode: maybe(text),
  policy: maybe(text),
  sweep: maybe(number),
  error: maybe(text),
});
export type RunState = Read<typeof runState>;
export type Run = RunState['run'];

const gpu = object({
  index: text,
  util_pct: maybe(number),
  memory_used_mib: maybe(number),
  memory_total_mib: maybe(number),
});
export type Gpu = Read<typeof gpu>;

const worker = object({
  name: text,
  state: maybe(text),
  gpus: list(gpu),
  requests: maybe(number),
  running: maybe(number),
  waiting: maybe(number),
  slots: maybe(number),
  kv_usage_pct: maybe(number),
  cached_blocks: maybe(number),
  kv_blocks: maybe(number),
  evicted_blocks: maybe(number),
  acceptance_pct: maybe(number),
  trust: maybe(number),
});
export type Worker = Read<typeof worker>;

export const workers = object({
  t: number,
  from: oneOf('prometheus', 'workers'),
  prometheus: oneOf('ok', 'unavailable', 'not_configured'),
  gpu: maybe(text),
  model: maybe(text),
  workers: list(worker),
});
export type Workers = Read<typeof workers>;

const sweepKind = oneOf('live', 'virtual');
const sweepState = oneOf('running', 'done', 'stopped', 'failed');
export type SweepKind = Read<typeof sweepKind>;
export type SweepState = Read<typeof sweepState>;

export const sweepProgress = object({
  id: number,
  kind: sweepKind,
  state: sweepState,
  done: number,
  of: number,
  left_s: maybe(number),
  now: maybe(text),
  error: maybe(text),
});
export type SweepProgress = Read<typeof sweepProgress>;

const can = object({ run: flag, level: flag, mode: flag, sweep: flag, explain: flag, tree: flag });
export type Can = Read<typeof can>;

const slider = object({ min: number, max: number, step: number });
export type Slider = Read<typeof slider>;

export const hello = object({
  version: text,
  instance: text,
  brand: object({ title: maybe(text), subtitle: maybe(text) }),
  can,
  objective,
  slider,
  speed: number,
  note: maybe(text),
  target: maybe(text),
  model: maybe(text),
  window_s: number,
  short_window_s: number,
  history,
  marks: list(mark),
  state: runState,
  sample: maybe(sample),
  workers: maybe(workers),
  sweep: maybe(sweepProgress),
});
export type Hello = Read<typeof hello>;

export type Message =
  | ({ type: 'hello' } & Hello)
  | ({ type: 'state' } & RunState)
  | ({ type: 'sample' } & Sample)
  | ({ type: 'mark' } & Mark)
  | ({ type: 'workers' } & Workers)
  | ({ type: 'sweep' } & SweepProgress);

const messages = { hello, state: runState, sample, mark, workers, sweep: sweepProgress };

/** Null for a message of a kind that this page does not know. */
export function readMessage(value: unknown): Message | null {
  const { type } = object({ type: text })(value, 'message');
  if (!Object.hasOwn(messages, type)) return null;
  const read = messages[type as Message['type']] as Reader<object>;
  return { type, ...read(value, type) } as Message;
}

// What is compared with

const recordedFigures = object({
  ttft_p50_ms: maybe(number),
  ttft_p95_ms: maybe(number),
  tpot_p50_ms: maybe(number),
  tpot_p95_ms: maybe(number),
  itl_p50_ms: maybe(number),
  itl_p95_ms: maybe(number),
  e2e_p50_s: maybe(number),
  e2e_p95_s: maybe(number),
  tops: maybe(number),
  rps: maybe(number),
  hit_pct: maybe(number),
});
export type RecordedFigures = Read<typeof recordedFigures>;

const baselineRow = object({ concurrency: number, rr: maybe(recordedFigures), kv: maybe(recordedFigures) });
export type BaselineRow = Read<typeof baselineRow>;

export const baselines = object({
  source: oneOf('recorded', 'sweep'),
  about: text,
  objective,
  modes: object({ rr: maybe(text), kv: maybe(text) }),
  rows: list(baselineRow),
});
export type Baselines = Read<typeof baselines>;

// Conversations

const conversationStatus = oneOf('active', 'completed', 'error', 'stopped');
export type ConversationStatus = Read<typeof conversationStatus>;

const conversationFields = {
  id: number,
  status: conversationStatus,
  topic: text,
  turns_done: number,
  turns_planned: number,
  started: number,
  duration_s: number,
};

const conversationLine = object(conversationFields);
export type ConversationLine = Read<typeof conversationLine>;

export const conversationList = object({
  now: number,
  started: number,
  active: number,
  conversations: list(conversationLine),
});
export type ConversationList = Read<typeof conversationList>;

/** One worker as the decision saw it. A cost is a cost: the lowest is chosen. */
const candidate = object({
  worker: maybe(text),
  held_blocks: maybe(number),
  expected_blocks: maybe(number),
  active_requests: maybe(number),
  prefill_cost: maybe(number),
  decode_cost: maybe(number),
  requests_cost: maybe(number),
  waiting_cost: maybe(number),
  home_credit: maybe(number),
  cost: maybe(number),
  barred: maybe(text),
});
export type Candidate = Read<typeof candidate>;

/** `chosen` is the place of the worker taken among the candidates. */
const decision = object({
  mode: maybe(text),
  block_size: maybe(number),
  blocks: maybe(number),
  chosen: maybe(number),
  candidates: list(candidate),
  barred: or(list(candidate), []),
});
export type Decision = Read<typeof decision>;

const turn = object({
  turn: number,
  request_id: maybe(text),
  state: oneOf('asking', 'done', 'error'),
  user: text,
  user_left_out: or(number, 0),
  assistant: or(text, ''),
  assistant_left_out: or(number, 0),
  ttft_ms: maybe(number),
  itl_ms: maybe(number),
  tpot_ms: maybe(number),
  latency_s: maybe(number),
  output_tokens: maybe(number),
  prompt_tokens: maybe(number),
  cached_tokens: maybe(number),
  worker: maybe(text),
  error: maybe(text),
  complaint: maybe(text),
  decision: maybe(decision),
});
export type Turn = Read<typeof turn>;

export const conversation = object({ ...conversationFields, session: maybe(text), turns: list(turn) });
export type Conversation = Read<typeof conversation>;

// The tree, and why a worker is chosen

const holder = object({ worker: text, blocks: number });
const treeNode = object({
  id: number,
  parent: maybe(number),
  start: number,
  blocks: number,
  below: number,
  topic: maybe(text),
  holders: list(holder),
});
export type TreeNode = Read<typeof treeNode>;

const treeWorker = object({ name: text, cached_blocks: maybe(number), evicted_blocks: maybe(number) });
export type TreeWorker = Read<typeof treeWorker>;

const indexFigures = object({
  bytes: maybe(number),
  nodes: maybe(number),
  distinct_blocks: maybe(number),
  predicted_blocks: maybe(number),
  stored_blocks_total: maybe(number),
  removed_blocks_total: maybe(number),
});
export type IndexFigures = Read<typeof indexFigures>;

export const tree = object({
  at: number,
  nodes: list(treeNode),
  left_out: number,
  index: indexFigures,
  workers: list(treeWorker),
});
export type Tree = Read<typeof tree>;

export const explanation = object({
  model: maybe(text),
  mode: maybe(text),
  prompt_tokens: maybe(number),
  prompt_tokens_exact: maybe(flag),
  block_size: maybe(number),
  blocks: maybe(number),
  chosen: maybe(candidate),
  candidates: list(candidate),
  barred: or(list(candidate), []),
});
export type Explanation = Read<typeof explanation>;

// Sweeps

const sweepLine = object({
  id: number,
  kind: sweepKind,
  name: text,
  state: sweepState,
  started: maybe(number),
  done: number,
  of: number,
  left_s: maybe(number),
  error: maybe(text),
});
export type SweepLine = Read<typeof sweepLine>;

const sweepDefaults = object({
  levels: list(number),
  modes: object({ live: list(text), virtual: list(text) }),
  scenarios: list(object({ name: text, about: text })),
});
export type SweepDefaults = Read<typeof sweepDefaults>;

export const sweepList = object({ sweeps: list(sweepLine), defaults: sweepDefaults });
export type SweepList = Read<typeof sweepList>;

export type SweepPlan =
  | {
      kind: 'live';
      levels: number[];
      modes: string[];
      repeats: number;
      warm_up_s: number;
      window_s: number;
      snapshots: number;
      fill_s: number;
    }
  | { kind: 'virtual'; scenario: string; levels: number[]; modes: string[]; seeds: number };

export const sweepStarted = object({ id: number });

const sweepCell = object({
  mode: text,
  level: number,
  repeat: number,
  figures: maybe(figures),
  invalid: maybe(text),
  saturated: maybe(text),
});
export type SweepCell = Read<typeof sweepCell>;

const sweepSet = object({ name: text, about: text, levels_are: text, cells: list(sweepCell) });
export type SweepSet = Read<typeof sweepSet>;

/** The objective of a sweep file is in seconds. */
const sweepResults = object({
  schema: text,
  source: oneOf('measured', 'simulated'),
  objective: object({ ttft_s: number, tpot_s: number }),
  sets: list(sweepSet),
});
export type SweepResults = Read<typeof sweepResults>;

const standing = object({ mode: text, holds_to: maybe(number), knee: maybe(number), words: text });
export type Standing = Read<typeof standing>;

export const sweepDetail = object({
  id: number,
  kind: sweepKind,
  name: text,
  state: sweepState,
  started: maybe(number),
  done: number,
  of: number,
  left_s: maybe(number),
  error: maybe(text),
  results: maybe(sweepResults),
  standings: or(list(standing), []),
  recorded: or(flag, false),
});
export type SweepDetail = Read<typeof sweepDetail>;

export const REPORTS = [
  'report.html',
  'report.md',
  'report.csv',
  'report.json',
  'reference-rules.yml',
  'reference-lines.json',
] as const;
export type Report = (typeof REPORTS)[number];
