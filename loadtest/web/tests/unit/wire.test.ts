import { existsSync, readdirSync, readFileSync } from 'node:fs';

import { describe, expect, test } from 'vitest';

import type { Reader } from '../../src/reader';
import * as wire from '../../src/wire';
import * as answers from '../support/answers';
import * as fixtures from '../support/fixtures';

const RECORDED = new URL('../support/recorded/', import.meta.url);

type Told = { read: Reader<unknown>; fixture: unknown };
const message = (fixture: unknown): Told => ({ read: wire.readMessage, fixture });

/** What the server's own tests keep of what it says, by the name of the file: the reader it is for, and what we take it for. */
const TOLD: Record<string, Told> = {
  hello: message(fixtures.hello()),
  state: message(fixtures.state()),
  sample: message(fixtures.sample()),
  mark: message(fixtures.mark('mode', 'kv')),
  workers: message(fixtures.workers()),
  sweep: message(fixtures.sweepProgress()),
  baselines: { read: wire.baselines, fixture: fixtures.baselines() },
  conversations: { read: wire.conversationList, fixture: answers.conversations() },
  conversation: { read: wire.conversation, fixture: answers.conversation() },
  tree: { read: wire.tree, fixture: answers.tree() },
  explanation: { read: wire.explanation, fixture: answers.workedExample() },
  sweeps: { read: wire.sweepList, fixture: answers.sweeps() },
  'sweep-detail': { read: wire.sweepDetail, fixture: answers.sweep() },
};

/** What the server may leave out: figures it has none of, what is wrong with a cell, and one of a level's two forms. */
const LEFT_OUT = [/\.(figures|short)\.\w+$/, /\.cells\[\]\.(figures|invalid|saturated)$/, /\.level\.\w+$/];
/** Lists that may be empty at any time, and what is in them. */
const OFTEN_EMPTY = /\.(marks|barred)\[\]/;

/** Every place a reader looks at, and those of them at which there was nothing. */
function looks({ read }: Told, said: unknown): { at: Set<string>; missed: Set<string> } {
  const at = new Set<string>();
  const missed = new Set<string>();
  const watched = (value: unknown, path: string): unknown => {
    if (typeof value !== 'object' || value === null) return value;
    return new Proxy(value, {
      get(target, name) {
        const found: unknown = Reflect.get(target, name);
        if (typeof name === 'symbol' || typeof found === 'function') return found;
        const place = Array.isArray(target) ? `${path}[]` : `${path}.${name}`;
        at.add(place);
        if (!(name in target)) missed.add(place);
        return watched(found, place);
      },
    });
  };
  expect(read(watched(said, ''), 'recorded')).not.toBeNull();
  return { at, missed };
}

describe('what the server said, as its own tests keep it', () => {
  test('is all there', () => {
    const kept = existsSync(RECORDED) ? readdirSync(RECORDED) : [];
    const wanted = Object.keys(TOLD).map((name) => `${name}.json`);
    expect(kept.filter((name) => name.endsWith('.json')).sort()).toEqual(wanted.sort());
  });

  test.each(Object.entries(TOLD))('is understood: %s', (name, told) => {
    const said: unknown = JSON.parse(readFileSync(new URL(`${name}.json`, RECORDED), 'utf8'));
    const found = looks(told, said);
    const isFine = (place: string) => LEFT_OUT.some((pattern) => pattern.test(place));
    expect([...found.missed].filter((place) => !isFine(place))).toEqual([]);
    // What our own tests look at is there to be looked at.
    const ours = [...looks(told, told.fixture).at];
    const unseen = ours.filter((place) => !found.at.has(place) && !isFine(place) && !OFTEN_EMPTY.test(place));
    expect(unseen).toEqual([]);
  });
});

describe('what our tests say', () => {
  test.each(Object.entries(TOLD))('leaves nothing out: %s', (_, told) => {
    const isLevel = (place: string) => /\.level\.\w+$/.test(place);
    expect([...looks(told, told.fixture).missed].filter((place) => !isLevel(place))).toEqual([]);
  });
});

describe('messages', () => {
  test('what is left out is not known', () => {
    const message = wire.readMessage(fixtures.emptySample());
    expect(message).toMatchObject({ type: 'sample', requests: null });
    expect((message as wire.Sample).figures.ttft_p50_ms).toBeNull();
  });

  test('a load has one of two levels', () => {
    const level = (given: object) => (wire.readMessage(fixtures.state(given)) as wire.RunState).level;
    expect(level({ level: { concurrency: 80 } })).toEqual({ concurrency: 80, rate: null });
    expect(level({ level: { rate: 2.5 } })).toEqual({ concurrency: null, rate: 2.5 });
    expect(level({ level: null })).toBeNull();
  });

  test('fields nobody knows are passed over', () => {
    const message = wire.readMessage({ ...fixtures.sample(), weather: 'sunny' });
    expect(message).not.toHaveProperty('weather');
  });

  test('another kind is none of ours, a name of every object included', () => {
    expect(wire.readMessage({ type: 'weather' })).toBeNull();
    expect(wire.readMessage({ type: 'toString' })).toBeNull();
  });

  test.each([
    [{ ...fixtures.sample(), t: '12' }, 'sample.t is string, expected a number'],
    [{ ...fixtures.sample(), figures: null }, 'sample.figures is null, expected an object'],
    [
      fixtures.state({ run: 'flying' } as never),
      'state.run is string, expected stopped or starting or running or stopping',
    ],
    [
      fixtures.hello({ marks: [{ t: 1, kind: 'mode' }] }),
      'hello.marks[0].label is undefined, expected a text',
    ],
    [fixtures.workers({ workers: {} as never }), 'workers.workers is object, expected a list'],
    [[], 'message is a list, expected an object'],
    [7, 'message is number, expected an object'],
  ])('%# is refused with the place that is wrong', (said, complaint) => {
    expect(() => wire.readMessage(said)).toThrow(complaint);
  });

  test('labels are texts, by whatever name', () => {
    const detail = { ...answers.sweep(), labels: { anything: 'Any thing', odd: 7 } };
    expect(() => wire.sweepDetail(detail, 'sweep')).toThrow('sweep.labels.odd is number, expected a text');
  });
});
