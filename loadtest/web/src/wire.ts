// What the page reads of what the server says, as types with their readers. Latencies are in ms or s as their names say,
// `t`, `at` and `started` in seconds since 1970. What is not known is null.

import { byName, flag, list, maybe, number, object, oneOf, or, text, type Read, type Reader } from './reader';

const objective = object({ ttft_ms: number, tpot_ms: number });
export type Objective = Read<typeof objective>;

const tokenTimes = {
  ttft_p50_ms: maybe(number),
  ttft_p95_ms: maybe(number),
  tpot_p50_ms: maybe(number),
  tpot_p95_ms: maybe(number),
};
const times = {
  ...tokenTimes,
  itl_p50_ms: maybe(number),
  itl_p95_ms: maybe(number),
  e2e_p50_s: maybe(number),
  e2e_p95_s: maybe(number),
};

// The feed

const figures = object({ ...times, tops: maybe(number), rps: maybe(number), hit_pct: maybe(number) });
export type Figures = Read<typeof figures>;

const sample = object({
  t: number,
  figures,
  short: object(tokenTimes),
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
const history = object({
  t: list(number),
  ttft_p50_ms: column,
  ttft_p95_ms: column,
  tpot_p50_ms: column,
  tpot_p95_ms: column,
});
export type History = Read<typeof history>;

const mark = object({
  t: number,
  kind: oneOf('start', 'stop', 'level', 'mode', 'reset'),
  label: text,
});
export type Mark = Read<typeof mark>;

/** Either this many conversations at a time, or this many new ones a second. */
const level = object({ concurrency: maybe(number), rate: maybe(number) });
export type LoadLevel = Read<typeof level>;

const runState = object({
  run: oneOf('stopped', 'starting', 'running', 'stopping'),
  level: maybe(level),
  mode: maybe(text),
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

const workers = object({
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

/** How far a sweep is, wherever that is said. */
const sweepStatus = {
  id: number,
  kind: sweepKind,
  state: sweepState,
  done: number,
  of: number,
  left_s: maybe(number),
  error: maybe(text),
};

const sweepProgress = object({ ...sweepStatus, now: maybe(text) });
export type SweepProgress = Read<typeof sweepProgress>;

const can = object({ run: flag, level: flag, mode: flag, sweep: flag, explain: flag, tree: flag });

const slider = object({ min: number, max: number, step: number });
export type Slider = Read<typeof slider>;

const hello = object({
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

const recordedTimes = object(times);
export type RecordedTimes = Read<typeof recordedTimes>;

const baselineRow = object({ concurrency: number, rr: maybe(recordedTimes), kv: maybe(recordedTimes) });
export type BaselineRow = Read<typeof baselineRow>;

/** Our own recording, a file of that shape, or a sweep; `replaced` when they are not those the server began with. */
export const baselines = object({
  source: oneOf('recorded', 'file', 'sweep'),
  replaced: flag,
  about: text,
  objective,
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

/** One worker as the decision saw it, with the terms of its cost. */
const candidate = object({
  worker: maybe(text),
  held_blocks: maybe(number),
  expected_blocks: maybe(number),
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
  state: oneOf('asking', 'done', 'error', 'stopped'),
  user: text,
  user_left_out: or(number, 0),
  assistant: or(text, ''),
  assistant_left_out: or(number, 0),
  ttft_ms: maybe(number),
  itl_ms: maybe(number),
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

export const conversation = object({ ...conversationFields, turns: list(turn) });
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
  /** Why there is nothing to see. */
  note: maybe(text),
  index: indexFigures,
  workers: list(treeWorker),
});
export type Tree = Read<typeof tree>;

export const explanation = object({
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

const sweepFields = { ...sweepStatus, name: text, started: maybe(number) };

const sweepLine = object(sweepFields);
export type SweepLine = Read<typeof sweepLine>;

/** What modes are called, by their ids. */
const labels = byName(text);
export type Labels = Read<typeof labels>;

const sweepDefaults = object({
  levels: list(number),
  modes: object({ live: list(text), virtual: list(text) }),
  labels,
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
  | {
      kind: 'virtual';
      scenario: string;
      levels: number[];
      modes: string[];
      seeds: number;
      /** Also while the load runs, which slows down both. */
      beside_load?: true;
    };

export const sweepStarted = object({ id: number });

const sweepCell = object({
  mode: text,
  level: number,
  figures: maybe(figures),
  invalid: maybe(text),
  saturated: maybe(text),
});
export type SweepCell = Read<typeof sweepCell>;

const sweepSet = object({ name: text, about: text, levels_are: text, cells: list(sweepCell) });
export type SweepSet = Read<typeof sweepSet>;

/** The objective of a sweep file is in seconds. */
const sweepResults = object({
  source: oneOf('measured', 'simulated'),
  objective: object({ ttft_s: number, tpot_s: number }),
  sets: list(sweepSet),
});
export type SweepResults = Read<typeof sweepResults>;

const standing = object({ mode: text, holds_to: maybe(number), words: text });
export type Standing = Read<typeof standing>;

export const sweepDetail = object({
  ...sweepFields,
  labels,
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
