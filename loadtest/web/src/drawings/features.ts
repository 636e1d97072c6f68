import type { ComponentType } from 'react';
import { AnyApi, Bounded, Explained, Failover } from './ServiceFigures';
import { Balance, Events, Room, WarmCache } from './PlacementFigures';

/** Something the router does, with a picture of it. */
type Feature = { name: string; about: string; shows: string; Figure: ComponentType };

export const FEATURES: readonly Feature[] = [
  {
    name: 'Warm caches first',
    about:
      'A request goes where most of its prompt is cached already. A follow-up turn computes its new words only.',
    shows: 'A prompt whose first six of eight blocks are cached goes to the worker that holds them.',
    Figure: WarmCache,
  },
  {
    name: 'Load counts too',
    about:
      'Blocks to compute and blocks in use are one cost. A warm worker that is busy loses to a cooler one that is free.',
    shows: 'Three workers with bars of load; the request goes to the one with the shortest.',
    Figure: Balance,
  },
  {
    name: 'Told by the engines',
    about:
      'The index follows what engines say they stored and removed. Gaps are noticed and made good; it never claims more than was said.',
    shows: 'An engine says stored and removed, and a block appears in the index and another leaves it.',
    Figure: Events,
  },
  {
    name: 'Nobody is crowded',
    about:
      'Full workers are passed over while another has room, unless a short wait saves more computing. When all are full, requests wait in a bounded, fair queue.',
    shows: 'Two full workers, one with free slots, and a request that goes there.',
    Figure: Room,
  },
  {
    name: 'Failover, unnoticed',
    about:
      'A worker that refuses, fails or hangs before its first byte costs the client nothing: the next of the decision is asked.',
    shows: 'A request tries a worker that fails, then reaches the next one.',
    Figure: Failover,
  },
  {
    name: 'The same bytes',
    about:
      'Clients keep their API. Requests reach the engine as they came, answers stream back event by event.',
    shows: 'A line of chunks passes through the router unchanged.',
    Figure: AnyApi,
  },
  {
    name: 'Every decision explained',
    about:
      'Each candidate’s terms are kept: what it held, what it would compute, what it was busy with. Modes change while it runs.',
    shows: 'A small table of three workers’ costs with the least one marked.',
    Figure: Explained,
  },
  {
    name: 'One bounded program',
    about:
      'No database and nothing to run beside it. Every queue, cache and map has a bound, the index a budget in bytes.',
    shows: 'A gauge that stops below its limit.',
    Figure: Bounded,
  },
];
