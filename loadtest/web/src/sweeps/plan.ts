import type { SweepKind, SweepPlan } from '../wire';

/** The form as it stands, texts and all. */
export type Draft = {
  kind: SweepKind;
  levels: string;
  modes: readonly string[];
  scenario: string;
  seeds: number;
  besideLoad: boolean;
  repeats: number;
  warmUpS: number;
  windowS: number;
  snapshots: number;
  fillS: number;
};

const MOST_LEVELS = 32;
const MOST_CONVERSATIONS = 10_000;

/** As the recorded sweeps were: a minute of warm-up, five minutes with three looks, caches filled for a minute first. */
export function draftOf(
  kind: SweepKind,
  levels: readonly number[],
  modes: readonly string[],
  scenario: string,
): Draft {
  return {
    kind,
    levels: levels.join(', '),
    modes,
    scenario,
    seeds: 6,
    besideLoad: false,
    repeats: 1,
    warmUpS: 60,
    windowS: 300,
    snapshots: 3,
    fillS: 60,
  };
}

/** A plan, or the first thing that is wrong with the draft. */
export function planOf(draft: Draft): SweepPlan | { wrong: string } {
  const words = draft.levels.split(/[\s,;]+/).filter((word) => word !== '');
  const odd = words.find(
    (word) => !/^\d+$/.test(word) || Number(word) < 1 || Number(word) > MOST_CONVERSATIONS,
  );
  if (odd !== undefined)
    return { wrong: `level is ${odd}, expected a number from 1 to ${MOST_CONVERSATIONS}` };
  const levels = [...new Set(words.map(Number))].sort((one, other) => one - other);
  if (levels.length === 0) return { wrong: 'no level is given, expected some such as 60, 80, 100' };
  if (levels.length > MOST_LEVELS)
    return { wrong: `${levels.length} levels, expected ${MOST_LEVELS} at most` };
  if (draft.modes.length === 0) return { wrong: 'no mode is chosen, expected one or more' };
  const modes = [...draft.modes];
  if (draft.kind === 'virtual') {
    if (draft.scenario === '') return { wrong: 'no scenario is chosen' };
    return (
      outside('seeds', draft.seeds, 1, 64) ?? {
        kind: 'virtual',
        scenario: draft.scenario,
        levels,
        modes,
        seeds: draft.seeds,
        ...(draft.besideLoad && { beside_load: true as const }),
      }
    );
  }
  return (
    outside('repeats', draft.repeats, 1, 64) ??
    outside('warm-up', draft.warmUpS, 0, 3600) ??
    outside('window', draft.windowS, 1, 3600) ??
    outside('snapshots', draft.snapshots, 1, 60) ??
    outside('filling', draft.fillS, 0, 3600) ?? {
      kind: 'live',
      levels,
      modes,
      repeats: draft.repeats,
      warm_up_s: draft.warmUpS,
      window_s: draft.windowS,
      snapshots: draft.snapshots,
      fill_s: draft.fillS,
    }
  );
}

function outside(name: string, value: number, least: number, most: number): { wrong: string } | null {
  if (Number.isInteger(value) && value >= least && value <= most) return null;
  return {
    wrong: `${name} is ${Number.isNaN(value) ? 'not a number' : value}, expected ${least} to ${most}`,
  };
}

/** How long a live sweep takes when nothing is cut short; virtual time has no such promise. */
export function lengthS(plan: SweepPlan): number | null {
  if (plan.kind === 'virtual') return null;
  const stretch = plan.fill_s + plan.levels.length * (plan.warm_up_s + plan.window_s);
  return plan.modes.length * plan.repeats * stretch;
}
