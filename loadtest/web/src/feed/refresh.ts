import { api, messageOf } from '../api';
import type { Baselines } from '../wire';
import type { Store } from './store';

const AGAIN_MS = 5000;

type Ask = (signal: AbortSignal) => Promise<Baselines>;

/** What is compared with, asked for when a server greets us, and again until it is had or the server is gone. */
export class BaselinesRefresh {
  private asking = new AbortController();
  private again: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly store: Pick<Store, 'compareWith' | 'complain' | 'forgive'>,
    private readonly ask: Ask = api.baselines,
  ) {}

  start(): void {
    this.stop();
    this.asking = new AbortController();
    void this.look(this.asking.signal, null);
  }

  stop(): void {
    this.asking.abort();
    clearTimeout(this.again);
  }

  /** `said` is what was complained of already: who has put it away is not told again. */
  private async look(signal: AbortSignal, said: string | null): Promise<void> {
    try {
      const baselines = await this.ask(signal);
      if (signal.aborted) return;
      this.store.compareWith(baselines);
      if (said !== null) this.store.forgive(said);
    } catch (problem) {
      if (signal.aborted) return;
      const complaint = `figures to compare with: ${messageOf(problem)}`;
      if (complaint !== said) this.store.complain(complaint);
      this.again = setTimeout(() => void this.look(signal, complaint), AGAIN_MS);
    }
  }
}
