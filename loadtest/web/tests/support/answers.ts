// What the pages beside the dashboard ask for, as the contract has it.

import type {
  Candidate,
  ConversationLine,
  ConversationList,
  Conversation,
  Explanation,
  SweepCell,
  SweepDetail,
  SweepLine,
  SweepList,
  Tree,
  TreeNode,
  Turn,
} from '../../src/wire';
import { figures, T0 } from './fixtures';
import type { Stub } from './stub';

export const WORKERS = ['kvlane-worker-0', 'kvlane-worker-1', 'kvlane-worker-2'] as const;

// Conversations

export function line(id: number, change: Partial<ConversationLine> = {}): ConversationLine {
  return {
    id,
    status: 'active',
    topic: 'log-structured storage',
    turns_done: 2,
    turns_planned: 5,
    started: T0 - 41.2,
    duration_s: 41.2,
    ...change,
  };
}

export function conversations(lines: readonly ConversationLine[] = someLines()): ConversationList {
  const active = lines.filter((one) => one.status === 'active').length;
  return { now: T0, started: 1234, active, conversations: [...lines] };
}

function someLines(): ConversationLine[] {
  return [
    line(17),
    line(16, { status: 'completed', topic: 'tide tables', turns_done: 4, turns_planned: 4, duration_s: 125 }),
    line(15, { status: 'error', topic: 'beekeeping', turns_done: 1, turns_planned: 3, duration_s: 12 }),
    line(14, {
      status: 'stopped',
      topic: 'bridge building',
      turns_done: 2,
      turns_planned: 3,
      duration_s: 60,
    }),
  ];
}

export function candidate(worker: string | null, cost: number, change: Partial<Candidate> = {}): Candidate {
  return {
    worker,
    held_blocks: 0,
    expected_blocks: 0,
    prefill_cost: cost,
    decode_cost: 0,
    requests_cost: 0,
    waiting_cost: 0,
    home_credit: 0,
    cost,
    barred: null,
    ...change,
  };
}

/** A prompt of a hundred blocks: 20, 75 and 10 of them cached, 10, 5 and 9 blocks in use. */
export function workedExample(): Explanation {
  const of = (worker: string, held: number, inUse: number) =>
    candidate(worker, 100 - held + inUse, {
      held_blocks: held,
      prefill_cost: 100 - held,
      decode_cost: inUse,
    });
  const ranked = [of(WORKERS[1], 75, 5), of(WORKERS[0], 20, 10), of(WORKERS[2], 10, 9)];
  return {
    mode: 'kv',
    prompt_tokens: 3210,
    prompt_tokens_exact: true,
    block_size: 32,
    blocks: 100,
    chosen: ranked[0] ?? null,
    candidates: ranked,
    barred: [candidate('kvlane-worker-3', 0, { cost: null, held_blocks: 100, barred: 'draining' })],
  };
}

export function turn(number: number, change: Partial<Turn> = {}): Turn {
  const { mode, block_size, blocks, candidates, barred } = workedExample();
  return {
    turn: number,
    request_id: `s-17-${number}`,
    state: 'done',
    user: `What does turn ${number} ask?`,
    user_left_out: 0,
    assistant: `This is what turn ${number} answers.`,
    assistant_left_out: 0,
    ttft_ms: 412,
    itl_ms: 28.1,
    latency_s: 24.6,
    output_tokens: 833,
    prompt_tokens: 4700,
    cached_tokens: 4512,
    worker: WORKERS[1],
    error: null,
    complaint: null,
    decision: { mode, block_size, blocks, chosen: 0, candidates, barred },
    ...change,
  };
}

export function conversation(change: Partial<Conversation> = {}): Conversation {
  const first = {
    ttft_ms: 400,
    prompt_tokens: 3750,
    cached_tokens: 0,
    user_left_out: 15_872,
    user: longText(),
  };
  return {
    ...line(17, { turns_done: 3 }),
    turns: [turn(1, first), turn(2, { ttft_ms: 120 }), turn(3, { ttft_ms: 80 })],
    ...change,
  };
}

/** As the server keeps a document: its beginning, its end, and a sign between them. */
function longText(): string {
  const sentence = 'A log is only ever written at its end, so writes are fast and order is kept. ';
  return `${sentence.repeat(40)}[…] ${sentence.repeat(10)}Explain the text above to an engineer.`;
}

// The tree

export function node(id: number, parent: number | null, change: Partial<TreeNode> = {}): TreeNode {
  return { id, parent, start: 0, blocks: 116, below: 940, topic: null, holders: [], ...change };
}

export function tree(change: Partial<Tree> = {}): Tree {
  const [first, second, third] = WORKERS;
  return {
    at: T0,
    nodes: [
      node(3, 1, { start: 116, blocks: 27, below: 27, holders: [{ worker: second, blocks: 27 }] }),
      node(2, null, { topic: 'tide tables', below: 400, holders: [{ worker: first, blocks: 116 }] }),
      node(1, null, {
        topic: 'log-structured storage',
        holders: [
          { worker: first, blocks: 116 },
          { worker: second, blocks: 116 },
          { worker: third, blocks: 58 },
        ],
      }),
      node(4, 1, { start: 116, blocks: 40, below: 60, holders: [{ worker: first, blocks: 40 }] }),
    ],
    left_out: 212,
    note: null,
    index: {
      bytes: 1_468_006,
      nodes: 216,
      distinct_blocks: 9120,
      predicted_blocks: 31,
      stored_blocks_total: 191_353,
      removed_blocks_total: 182_233,
    },
    workers: WORKERS.map((name, at) => ({ name, cached_blocks: 9120 + at, evicted_blocks: 1000 * (at + 1) })),
    ...change,
  };
}

// Sweeps

export function sweepLine(id: number, change: Partial<SweepLine> = {}): SweepLine {
  return {
    id,
    kind: 'virtual',
    name: 'reference',
    state: 'done',
    started: T0 - 300,
    done: 21,
    of: 21,
    left_s: null,
    error: null,
    ...change,
  };
}

/** As the server calls them. */
const LABELS = {
  round_robin: 'Round-robin',
  random: 'Random',
  least_loaded: 'Least loaded',
  power_of_two: 'Power of two',
  session: 'By session',
  dynamo: 'KV-aware, plain cost',
  kvlane: 'KV-aware',
  kvlane_session: 'KV-aware by session',
};

export function sweeps(
  lines: readonly SweepLine[] = [sweepLine(2), sweepLine(1, { kind: 'live' })],
): SweepList {
  return {
    sweeps: [...lines],
    defaults: {
      levels: [60, 80, 100, 120, 140, 160, 180],
      modes: {
        live: ['round_robin', 'random', 'least_loaded', 'power_of_two', 'dynamo', 'kvlane'],
        virtual: Object.keys(LABELS),
      },
      labels: LABELS,
      scenarios: [
        { name: 'reference', about: 'conversations of 3 to 5 turns over ten documents' },
        { name: 'think_8', about: 'people think for eight seconds' },
      ],
    },
  };
}

export function cell(
  mode: string,
  level: number,
  ttftP95Ms: number,
  change: Partial<SweepCell> = {},
): SweepCell {
  return {
    mode,
    level,
    figures: figures({ ttft_p50_ms: ttftP95Ms / 2, ttft_p95_ms: ttftP95Ms }),
    invalid: null,
    saturated: null,
    ...change,
  };
}

/** Round robin misses at once, the plain cost holds to 60, ours to 120, and is far above at 180. */
export function sweep(change: Partial<SweepDetail> = {}): SweepDetail {
  const over = {
    round_robin: [655, 637, 652, 643, 643, 722, 732],
    dynamo: [590, 610, 640, 660, 690, 720, 760],
    kvlane: [446, 508, 547, 530, 650, 704, 3143],
  };
  const levels = [60, 80, 100, 120, 140, 160, 180];
  const cells = Object.entries(over).flatMap(([mode, values]) =>
    values.map((value, at) => cell(mode, levels[at] ?? 0, value)),
  );
  return {
    ...sweepLine(3),
    labels: LABELS,
    results: {
      source: 'simulated',
      objective: { ttft_s: 0.6, tpot_s: 0.06 },
      sets: [{ name: 'reference', about: '3 engines', levels_are: 'conversations at a time', cells }],
    },
    standings: [
      { mode: 'round_robin', holds_to: null, words: 'objective missed already at c = 60' },
      { mode: 'dynamo', holds_to: 60, words: 'objective holds to c = 60' },
      { mode: 'kvlane', holds_to: 120, words: 'objective holds to c = 120' },
    ],
    recorded: true,
    ...change,
  };
}

/** Every page finds something. */
export function answerAll(stub: Stub): void {
  stub.answer('GET /api/conversations', conversations());
  stub.answer('GET /api/conversations/17', conversation());
  stub.answer('GET /api/tree', tree());
  stub.answer('POST /api/explain', workedExample());
  stub.answer('GET /api/sweeps', sweeps());
  stub.answer('GET /api/sweeps/3', sweep());
}
