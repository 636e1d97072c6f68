// What people read in more than one place, or would want to change without reading code.

import type { Connection } from './feed/store';
import type { Tab } from './routes';
import type { Mark, Run, Sample } from './wire';

export const TITLE = 'Serve More Users on the Same GPUs with KV-Aware Routing';
export const SUBTITLE = 'Kvlane: every turn goes where its cache is warm';

export const TABS: readonly { tab: Tab; label: string }[] = [
  { tab: 'dashboard', label: 'Dashboard' },
  { tab: 'conversations', label: 'Conversations' },
  { tab: 'architecture', label: 'Demo Architecture' },
  { tab: 'kv-routing', label: 'KV Routing' },
  { tab: 'features', label: 'Features' },
  { tab: 'sweeps', label: 'Sweeps' },
];

export const CONNECTION: Record<Connection, string> = {
  connecting: 'Connecting',
  open: 'Live',
  down: 'Disconnected, trying again',
};

export const RUN: Record<Run, string> = {
  stopped: 'load stopped',
  starting: 'load starting',
  running: 'load running',
  stopping: 'load stopping',
};

/** Why something cannot be done just now. */
export const WHY_NOT = {
  disconnected: 'not connected to the server',
  sweep: 'a sweep is running',
  fixed: 'this load cannot be changed from this page',
  mode: 'the routing of this router cannot be changed from here',
  baselines: 'these figures cannot be replaced from this page',
  sweeps: 'sweeps cannot be started or stopped from this page',
} as const;

/** Why the load or the routing is not to be changed now; null when it is. */
export function whyNot(
  connected: boolean,
  allowed: boolean,
  sweep: number | null,
  refusal: string,
): string | null {
  if (!connected) return WHY_NOT.disconnected;
  if (sweep !== null) return WHY_NOT.sweep;
  return allowed ? null : refusal;
}

export const MARK: Record<Mark['kind'], string> = {
  start: 'start',
  stop: 'stop',
  level: 'at a time',
  mode: 'routing',
  reset: 'caches emptied',
};

export const HIT_FROM: Record<NonNullable<Sample['kv_hit_from']>, string> = {
  prometheus: 'from Prometheus',
  router: 'from the router',
  client: 'as clients were told',
};

/** What each figure means. */
export const HINTS = {
  ttft: 'Time to first token: from sending a request to the first token of its answer.',
  tpot: 'Time per output token: for each request, what is left of its latency after the first token, divided by the tokens after the first.',
  itl: 'Inter-token latency: for each request, the mean gap between pieces of its answer, as the recorded runs measured it.',
  latency: 'From sending a request to the last token of its answer.',
  rps: 'Requests completed per second, over the last minute.',
  requests: 'Requests finished since Start.',
  tops: 'Output tokens per second over all workers, in the last minute.',
  hit: 'Share of input tokens that were found in a worker’s KV cache and did not have to be computed.',
  queued: 'Requests that wait in the router for a free slot on a worker.',
  errors: 'Requests that failed since Start.',
  slo: 'Service level objective: 95 of 100 requests are to be faster than this.',
  improvement:
    'How much lower the KV-aware figure is than the round-robin one. Positive: KV-aware is faster.',
} as const;
export type HintOf = keyof typeof HINTS;
