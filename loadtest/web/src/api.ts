// Asks and commands. Each has an answer or throws an Error whose message is the server's own sentence.

import * as wire from './wire';
import type { Reader } from './reader';

const PATIENCE_MS = 10_000;
/** The router asks every worker to empty its cache before it answers. */
const MODE_PATIENCE_MS = 15_000;

export class ApiError extends Error {
  constructor(
    message: string,
    /** 0 when there was no answer at all. */
    readonly status: number,
  ) {
    super(message);
  }
}

/** The page may lie below a path prefix, so every address is relative to it. */
export function address(path: string): string {
  return new URL(path, document.baseURI).href;
}

type Ask = {
  method?: 'GET' | 'POST' | 'PUT' | 'DELETE';
  body?: string;
  signal?: AbortSignal | undefined;
  patienceMs?: number;
};

async function ask<T>(
  path: string,
  reader: Reader<T>,
  { method = 'GET', body, signal, patienceMs = PATIENCE_MS }: Ask = {},
): Promise<T> {
  const patience = AbortSignal.timeout(patienceMs);
  const request: RequestInit = {
    method,
    cache: 'no-store',
    signal: signal ? AbortSignal.any([signal, patience]) : patience,
  };
  if (body !== undefined) {
    request.body = body;
    request.headers = { 'Content-Type': 'application/json' };
  }
  let response: Response;
  let said: unknown;
  try {
    response = await fetch(address(path), request);
    said = await response.json().catch(() => null);
  } catch (problem) {
    if (signal?.aborted) throw problem;
    const silent = patience.aborted
      ? `no answer within ${patienceMs / 1000} s`
      : 'the server cannot be reached';
    throw new ApiError(silent, 0);
  }
  if (!response.ok)
    throw new ApiError(sentence(said) ?? `the server answered ${response.status}`, response.status);
  return reader(said, path);
}

function sentence(said: unknown): string | null {
  const message = (said as { error?: { message?: unknown } } | null)?.error?.message;
  return typeof message === 'string' ? message : null;
}

/** For commands whose effect comes back over the feed. */
const unread: Reader<void> = () => undefined;

function command(path: string, body: unknown = {}, patienceMs = PATIENCE_MS): Promise<void> {
  return ask(path, unread, { method: 'POST', body: JSON.stringify(body), patienceMs });
}

export const api = {
  start: () => command('api/run/start'),
  stop: () => command('api/run/stop'),
  setConcurrency: (concurrency: number) => command('api/load', { concurrency }),
  setMode: (mode: 'round_robin' | 'kv', reset: boolean) =>
    command('api/mode', { mode, reset }, MODE_PATIENCE_MS),

  baselines: (signal?: AbortSignal) => ask('api/baselines', wire.baselines, { signal }),
  compareWith: (file: string) => ask('api/baselines', wire.baselines, { method: 'PUT', body: file }),
  compareWithFirst: () => ask('api/baselines', wire.baselines, { method: 'DELETE' }),

  conversations: (signal?: AbortSignal) =>
    ask('api/conversations?limit=200', wire.conversationList, { signal }),
  conversation: (id: number, signal?: AbortSignal) =>
    ask(`api/conversations/${id}`, wire.conversation, { signal }),

  tree: (signal?: AbortSignal) => ask('api/tree', wire.tree, { signal }),
  explain: (prompt: string) =>
    ask('api/explain', wire.explanation, { method: 'POST', body: JSON.stringify({ prompt }) }),

  sweeps: (signal?: AbortSignal) => ask('api/sweeps', wire.sweepList, { signal }),
  startSweep: (plan: wire.SweepPlan) =>
    ask('api/sweeps', wire.sweepStarted, { method: 'POST', body: JSON.stringify(plan) }),
  sweep: (id: number, signal?: AbortSignal) => ask(`api/sweeps/${id}`, wire.sweepDetail, { signal }),
  stopSweep: (id: number) => command(`api/sweeps/${id}/stop`),
  reportAddress: (id: number, report: wire.Report) => address(`api/sweeps/${id}/${report}`),
};

export function messageOf(problem: unknown): string {
  return problem instanceof Error ? problem.message : String(problem);
}
