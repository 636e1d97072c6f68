import type { SweepKind } from '../wire';

type Kind = { label: string; about: string };

/** What a sweep is timed by, in the order they are offered. */
export const KINDS: Record<SweepKind, Kind> = {
  virtual: {
    label: 'Virtual time',
    about: 'simulated engines, hours in seconds, on all cores of this machine',
  },
  live: { label: 'Live', about: 'the router and workers behind this page, by the clock' },
};
export const KIND_ORDER = Object.keys(KINDS) as SweepKind[];
