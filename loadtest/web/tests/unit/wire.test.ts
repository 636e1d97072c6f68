import { existsSync, readdirSync, readFileSync } from 'node:fs';

import { describe, expect, test } from 'vitest';

import type { Reader } from '../../src/reader';
import * as wire from '../../src/wire';
import * as fixtures from '../support/fixtures';

const RECORDED = new URL('../support/recorded/', import.meta.url);

/** What a server said, by the name of the file it is kept in. */
const READERS: Record<string, Reader<unknown>> = {
  hello: wire.readMessage,
  state: wire.readMessage,
  sample: wire.readMessage,
  mark: wire.readMessage,
  workers: wire.readMessage,
  sweep: wire.readMessage,
  baselines: wire.baselines,
  conversations: wire.conversationList,
  conversation: wire.conversation,
  infrastructure: wire.workers,
  tree: wire.tree,
  explain: wire.explanation,
  sweeps: wire.sweepList,
  'sweep-detail': wire.sweepDetail,
};

test('what the server said, as its own tests keep it, is understood', () => {
  const names = existsSync(RECORDED) ? readdirSync(RECORDED).filter((name) => name.endsWith('.json')) : [];
  for (const name of names) {
    const read = READERS[name.replace('.json', '')];
    expect(read, `no reader for ${name}`).toBeDefined();
    const said: unknown = JSON.parse(readFileSync(new URL(name, RECORDED), 'utf8'));
    expect(read?.(said, name), name).not.toBeNull();
  }
});

describe('messages', () => {
  test.each(['hello', 'state', 'sample', 'workers'] as const)('%s is read', (type) => {
    expect(wire.readMessage(fixtures[type]())).toMatchObject({ type });
  });

  test('what is left out is not known', () => {
    const message = wire.readMessage(fixtures.emptySample());
    expect(message).toMatchObject({ type: 'sample', requests: null });
    expect((message as wire.Sample).figures.ttft_p50_ms).toBeNull();
  });

  test('a load has one of two levels', () => {
    const level = (given: object) => wire.runState(fixtures.state(given), 'state').level;
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
});
