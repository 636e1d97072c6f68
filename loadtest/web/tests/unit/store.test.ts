import { beforeEach, describe, expect, test } from 'vitest';

import { Series } from '../../src/feed/series';
import { MOST_MARKS, Store } from '../../src/feed/store';
import {
  baselines,
  emptySample,
  hello,
  history,
  mark,
  sample,
  state,
  T0,
  workers,
} from '../support/fixtures';

let publish: (() => void) | null;
let store: Store;
let published: number;

/** One frame of the screen. */
function frame() {
  const run = publish;
  publish = null;
  run?.();
}

function hear(...messages: object[]) {
  for (const message of messages) store.hear(JSON.stringify(message));
  frame();
  return store.snapshot();
}

beforeEach(() => {
  publish = null;
  published = 0;
  store = new Store(
    (run) => {
      publish = run;
    },
    () => 5000,
    new Series(10),
  );
  store.subscribe(() => {
    published += 1;
  });
});

describe('the store', () => {
  test('is open after a greeting, not before', () => {
    expect(store.snapshot().connection).toBe('connecting');
    expect(hear(sample()).connection).toBe('connecting');
    expect(store.hear(JSON.stringify(hello()))).toBe(true);
    frame();
    expect(store.snapshot().connection).toBe('open');
    store.disconnected();
    frame();
    expect(store.snapshot()).toMatchObject({ connection: 'down' });
    expect(hear(hello())).toMatchObject({ connection: 'open' });
  });

  test('tells its readers once a frame, however much comes', () => {
    store.hear(JSON.stringify(hello()));
    for (let t = 0; t < 1000; t += 1) store.hear(JSON.stringify(sample(T0 + t)));
    expect([published, store.snapshot().received]).toEqual([0, 0]);
    frame();
    expect([published, store.snapshot().received]).toEqual([1, 1001]);
    expect(publish).toBeNull();
  });

  test('keeps what each message says', () => {
    const world = hear(hello(), state({ run: 'stopping' }), sample(T0 + 1), workers(), mark('mode', 'kv'));
    expect(world.state?.run).toBe('stopping');
    expect(world.sample?.t).toBe(T0 + 1);
    expect(world.sampleAt).toBe(5000);
    expect(world.workers?.workers).toHaveLength(3);
    expect(world.marks).toHaveLength(1);
    expect(world.series.length).toBe(1);
  });

  test('of the same process takes its history in place of its own: no row is there twice', () => {
    hear(hello({ history: history(3, T0) }), sample(T0 + 1), mark('mode', 'kv'));
    const world = hear(hello({ history: history(5, T0 + 2), marks: [mark('stop', '')] }));
    expect(world.series.since(0, ['t'])).toEqual([[T0 - 2, T0 - 1, T0, T0 + 1, T0 + 2]]);
    expect(world.marks.map(({ kind }) => kind)).toEqual(['stop']);
  });

  test('of another process begins anew', () => {
    hear(hello({ history: history(8) }), sample(), workers(), state({ error: 'it broke' }));
    store.compareWith(baselines());
    const world = hear(hello({ instance: 'another' }));
    expect(world.series.length).toBe(0);
    expect(world).toMatchObject({ sample: null, workers: null, baselines: null, error: null, marks: [] });
  });

  test('draws a gap while nothing runs', () => {
    const world = hear(hello(), sample(T0), emptySample(T0 + 5), sample(T0 + 6));
    expect(world.series.since(0, ['ttft_p95_ms'])).toEqual([[452, null, 452]]);
    expect(world.sample?.figures.ttft_p50_ms).toBe(249);
  });

  test('passes over messages of another kind and counts frames that are none', () => {
    const before = hear(hello());
    const world = hear({ type: 'weather', sun: true });
    expect(world.refused).toBe(0);
    store.hear('no JSON');
    store.hear('{"type":"sample","t":"yesterday"}');
    store.hear('[]');
    frame();
    expect(store.snapshot()).toMatchObject({ refused: 3, received: 5, sample: before.sample });
  });

  test('keeps a bounded number of marks, and none older than its series', () => {
    hear(hello());
    for (let t = 0; t < 500; t += 1) hear(mark('level', String(t), T0 + t));
    expect(store.snapshot().marks).toHaveLength(MOST_MARKS);
    expect(store.snapshot().marks[0]?.t).toBe(T0 + 300);
    for (let t = 0; t < 10; t += 1) hear(sample(T0 + 490 + t));
    expect(store.snapshot().marks.map(({ t }) => t)).toEqual(
      Array.from({ length: 10 }, (_, t) => T0 + 490 + t),
    );
  });

  test('says so when it cannot read a greeting: nothing would be shown, and nobody would know why', () => {
    const world = hear(hello({ speed: 'fast' }));
    expect(world.connection).toBe('connecting');
    expect(world.error).toBe(
      'this page and its server do not match: hello.speed is string, expected a number',
    );
  });

  test('forgives what it is asked to, and nothing newer', () => {
    store.complain('one');
    store.complain('another');
    store.forgive('one');
    frame();
    expect(store.snapshot().error).toBe('another');
    store.forgive();
    frame();
    expect(store.snapshot().error).toBeNull();
  });

  test('says a new error of the server once', () => {
    expect(hear(hello(), state({ error: 'the target is away' })).error).toBe('the target is away');
    store.forgive();
    expect(hear(state({ error: 'the target is away' })).error).toBeNull();
    expect(hear(state({ error: 'another' })).error).toBe('another');
  });
});
