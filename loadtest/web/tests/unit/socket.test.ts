import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { Socket, type Wire } from '../../src/feed/socket';

class FakeWire {
  closed = false;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  onerror: (() => void) | null = null;
  close() {
    this.closed = true;
  }
}

let wires: FakeWire[];
let openedAt: number[];
let frames: string[];
let downs: number;

function socket(random = 0.5): Socket {
  return new Socket(
    {
      frame: (text) => frames.push(text),
      down: () => {
        downs += 1;
      },
    },
    () => {
      const wire = new FakeWire();
      wires.push(wire);
      openedAt.push(Date.now());
      return wire as unknown as Wire;
    },
    () => random,
  );
}

const last = () => wires.at(-1)!;

beforeEach(() => {
  vi.useFakeTimers({ now: 0 });
  wires = [];
  openedAt = [];
  frames = [];
  downs = 0;
});
afterEach(() => {
  vi.useRealTimers();
});

describe('a socket', () => {
  test('hands on what is said', () => {
    socket().start();
    last().onmessage?.({ data: 'one' });
    last().onmessage?.({ data: new ArrayBuffer(2) });
    expect(frames).toEqual(['one']);
  });

  test('comes back after 0.5, 1, 2, 4, 8 and then every 8 seconds', () => {
    socket().start();
    for (let lost = 0; lost < 7; lost += 1) {
      last().onclose?.();
      vi.advanceTimersByTime(8000);
    }
    const waits = openedAt.slice(1).map((at, before) => at - before * 8000);
    expect(waits).toEqual([500, 1000, 2000, 4000, 8000, 8000, 8000]);
    expect(downs).toBe(7);
  });

  test.each([
    [0, 400],
    [1, 600],
  ])('with chance %d waits %d ms', (random, expected) => {
    socket(random).start();
    last().onclose?.();
    vi.advanceTimersByTime(expected - 1);
    expect(wires).toHaveLength(1);
    vi.advanceTimersByTime(1);
    expect(wires).toHaveLength(2);
  });

  test('begins with the short wait again once something was said', () => {
    socket().start();
    last().onclose?.();
    vi.advanceTimersByTime(500);
    last().onclose?.();
    vi.advanceTimersByTime(1000);
    last().onmessage?.({ data: 'hello' });
    last().onclose?.();
    vi.advanceTimersByTime(500);
    expect(wires).toHaveLength(4);
  });

  test('that was taken but hears nothing for 10 s is down', () => {
    socket().start();
    vi.advanceTimersByTime(9999);
    expect(downs).toBe(0);
    vi.advanceTimersByTime(1);
    expect([downs, wires[0]?.closed]).toEqual([1, true]);
  });

  test('lives as long as something is said every 10 s', () => {
    socket().start();
    for (let heard = 0; heard < 10; heard += 1) {
      vi.advanceTimersByTime(9000);
      last().onmessage?.({ data: 'tick' });
    }
    expect([downs, wires.length]).toEqual([0, 1]);
  });

  test('tries at once when the network is back, but not beside one that is open', () => {
    const made = socket();
    made.start();
    made.retryNow();
    expect(wires).toHaveLength(1);
    last().onclose?.();
    made.retryNow();
    expect(wires).toHaveLength(2);
    vi.advanceTimersByTime(9000);
    expect(wires).toHaveLength(2);
  });

  test('that was let go of has no say, and one that is stopped stays away', () => {
    const made = socket();
    made.start();
    const first = last();
    vi.advanceTimersByTime(10_000);
    expect([first.onmessage, first.onclose]).toEqual([null, null]);
    made.stop();
    vi.advanceTimersByTime(60_000);
    made.retryNow();
    expect(wires).toHaveLength(1);
  });
});
