// The state of the world as the feed tells it. Messages change it at once, readers hear of it once a frame: a hundred
// thousand messages make no more work than a screen can show.

import { messageOf } from '../api';
import type { Baselines, Hello, Mark, Message, RunState, Sample, SweepProgress, Workers } from '../wire';
import { readMessage } from '../wire';
import { Series, rowOf } from './series';

export const MOST_MARKS = 200;

export type Connection = 'connecting' | 'open' | 'down';

export type World = {
  connection: Connection;
  hello: Hello | null;
  state: RunState | null;
  sample: Sample | null;
  /** When the sample came, by this machine's clock in ms. */
  sampleAt: number | null;
  workers: Workers | null;
  sweep: SweepProgress | null;
  marks: readonly Mark[];
  /** Changes in place; `seriesVersion` says that it did. */
  series: Series;
  seriesVersion: number;
  baselines: Baselines | null;
  /** A sentence for the red bar. */
  error: string | null;
  /** Frames that came, and those that were not of a form we know. */
  received: number;
  refused: number;
};

type Schedule = (publish: () => void) => void;

export class Store {
  private world: World;
  private shown: World;
  private readonly listeners = new Set<() => void>();
  private dirty = false;

  constructor(
    private readonly schedule: Schedule,
    private readonly now: () => number = Date.now,
    series = new Series(),
  ) {
    this.world = {
      connection: 'connecting',
      hello: null,
      state: null,
      sample: null,
      sampleAt: null,
      workers: null,
      sweep: null,
      marks: [],
      series,
      seriesVersion: 0,
      baselines: null,
      error: null,
      received: 0,
      refused: 0,
    };
    this.shown = { ...this.world };
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly snapshot = (): World => this.shown;

  /** A frame of the feed. True when it was a greeting. */
  hear(frame: string): boolean {
    this.world.received += 1;
    let said: unknown = null;
    let message: Message | null = null;
    try {
      said = JSON.parse(frame);
      message = readMessage(said);
    } catch (problem) {
      this.refuse(said, problem);
    }
    if (message) this.apply(message);
    this.publishSoon();
    return message?.type === 'hello';
  }

  disconnected(): void {
    if (this.world.connection !== 'down') this.set({ connection: 'down' });
  }

  compareWith(baselines: Baselines): void {
    this.set({ baselines });
  }

  complain(error: string): void {
    this.set({ error });
  }

  /** Whatever is complained of, or only this. */
  forgive(error = this.world.error): void {
    if (error === this.world.error) this.set({ error: null });
  }

  /** Any frame can be done without, but for the greeting: without one nothing else is shown. */
  private refuse(said: unknown, problem: unknown): void {
    this.world.refused += 1;
    if ((said as { type?: unknown } | null)?.type === 'hello')
      this.complain(`this page and its server do not match: ${messageOf(problem)}`);
  }

  private apply(message: Message): void {
    switch (message.type) {
      case 'hello':
        return this.greet(message);
      case 'state':
        return this.become(message);
      case 'sample':
        return this.take(message);
      case 'mark':
        return this.remember([...this.world.marks, message]);
      case 'workers':
        return this.set({ workers: message });
      case 'sweep':
        return this.set({ sweep: message });
    }
  }

  /** What was known of another process is worth nothing; the server's history takes the place of ours. */
  private greet(hello: Hello): void {
    if (hello.instance !== this.world.hello?.instance)
      this.set({ baselines: null, error: null, state: null });
    this.world.series.replace(hello.history);
    this.set({
      connection: 'open',
      // What it brings is kept in fields of its own; its history would only lie about.
      hello: { ...hello, history: NO_HISTORY, marks: [] },
      sample: hello.sample,
      sampleAt: hello.sample ? this.now() : null,
      workers: hello.workers,
      sweep: hello.sweep,
      seriesVersion: this.world.seriesVersion + 1,
    });
    this.remember(hello.marks);
    this.become(hello.state);
  }

  private become(state: RunState): void {
    const isNew = state.error !== null && state.error !== this.world.state?.error;
    this.set(isNew ? { state, error: state.error } : { state });
  }

  private take(sample: Sample): void {
    const { series } = this.world;
    series.push(rowOf(sample));
    this.set({ sample, sampleAt: this.now(), seriesVersion: this.world.seriesVersion + 1 });
    const first = series.firstT();
    const oldest = this.world.marks[0];
    if (series.isFull && first !== null && oldest !== undefined && oldest.t < first) {
      this.remember(this.world.marks.filter((mark) => mark.t >= first));
    }
  }

  private remember(marks: readonly Mark[]): void {
    this.set({ marks: marks.slice(-MOST_MARKS) });
  }

  private set(change: Partial<World>): void {
    Object.assign(this.world, change);
    this.publishSoon();
  }

  private publishSoon(): void {
    if (this.dirty) return;
    this.dirty = true;
    this.schedule(() => {
      this.dirty = false;
      this.shown = { ...this.world };
      for (const listener of this.listeners) listener();
    });
  }
}

const NO_HISTORY: Hello['history'] = {
  t: [],
  ttft_p50_ms: [],
  ttft_p95_ms: [],
  tpot_p50_ms: [],
  tpot_p95_ms: [],
};
