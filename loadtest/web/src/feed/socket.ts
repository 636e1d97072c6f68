// A connection that comes back. It knows nothing of what is said, only whether something is.

/** The server says something at least every five seconds; one that does not is gone, whatever the socket believes. */
const SILENCE_MS = 10_000;
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000];

type SocketEvents = {
  frame(text: string): void;
  down(): void;
};

/** What this file needs of the browser's WebSocket. */
export type Wire = Pick<WebSocket, 'close' | 'onmessage' | 'onclose' | 'onerror'>;

export class Socket {
  private wire: Wire | null = null;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  private wanted = false;

  constructor(
    private readonly events: SocketEvents,
    private readonly open: () => Wire,
    private readonly random: () => number = Math.random,
  ) {}

  start(): void {
    this.wanted = true;
    this.connect();
  }

  stop(): void {
    this.wanted = false;
    clearTimeout(this.retry);
    this.drop();
  }

  /** The network is back or the page is looked at again: no need to wait. */
  retryNow(): void {
    if (!this.wanted || this.wire) return;
    clearTimeout(this.retry);
    this.connect();
  }

  private connect(): void {
    const wire = this.open();
    this.wire = wire;
    this.watch();
    wire.onmessage = (event) => {
      if (typeof event.data !== 'string') return;
      this.failures = 0;
      this.watch();
      this.events.frame(event.data);
    };
    wire.onclose = () => this.lost();
    wire.onerror = () => this.lost();
  }

  private watch(): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.lost(), SILENCE_MS);
  }

  private lost(): void {
    this.drop();
    this.events.down();
    if (!this.wanted) return;
    const wait = BACKOFF_MS[Math.min(this.failures, BACKOFF_MS.length - 1)] ?? SILENCE_MS;
    this.failures += 1;
    clearTimeout(this.retry);
    // Pages that lost the same server do not all come back in the same moment.
    this.retry = setTimeout(() => this.connect(), wait * (0.8 + 0.4 * this.random()));
  }

  /** A socket that is let go of has no say any more. */
  private drop(): void {
    clearTimeout(this.watchdog);
    const wire = this.wire;
    this.wire = null;
    if (!wire) return;
    wire.onmessage = null;
    wire.onclose = null;
    wire.onerror = null;
    wire.close();
  }
}
