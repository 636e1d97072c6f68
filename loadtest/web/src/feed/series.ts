// Figures over time: a ring of columns, made once and never grown.

import type { History, Sample } from '../wire';

/** Half an hour at one a second, as the server keeps. */
export const CAPACITY = 1800;

/** Rows further apart than this have nothing between them: the load was stopped, or nobody was told. */
const GAP_S = 10;

const COLUMNS = ['t', 'ttft_p50_ms', 'ttft_p95_ms', 'tpot_p50_ms', 'tpot_p95_ms'] as const;
export type Column = (typeof COLUMNS)[number];
export type Row = { t: number } & Record<Exclude<Column, 't'>, number | null>;

const NOTHING: Omit<Row, 't'> = {
  ttft_p50_ms: null,
  ttft_p95_ms: null,
  tpot_p50_ms: null,
  tpot_p95_ms: null,
};

export function rowOf(sample: Sample): Row {
  return { t: sample.t, ...sample.short };
}

export class Series {
  private readonly columns: Record<Column, Float64Array>;
  /** Where the oldest row is. */
  private head = 0;
  private rows = 0;

  constructor(readonly capacity = CAPACITY) {
    const made = COLUMNS.map((name) => [name, new Float64Array(capacity)] as const);
    this.columns = Object.fromEntries(made) as Record<Column, Float64Array>;
  }

  get length(): number {
    return this.rows;
  }

  get isFull(): boolean {
    return this.rows === this.capacity;
  }

  firstT(): number | null {
    return this.rows === 0 ? null : (this.columns.t[this.head] ?? null);
  }

  lastT(): number | null {
    return this.rows === 0 ? null : (this.columns.t[this.slot(this.rows - 1)] ?? null);
  }

  /** A row that is not later than the last one takes its place: time only goes forward. */
  push(row: Row): void {
    const last = this.lastT();
    if (last !== null && row.t <= last) {
      this.write(this.slot(this.rows - 1), { ...row, t: last });
      return;
    }
    if (last !== null && row.t - last > GAP_S) this.append({ ...NOTHING, t: last + 1 });
    this.append(row);
  }

  /** The latest rows of a history, as if they had come one by one. */
  replace(history: History): void {
    this.clear();
    const from = Math.max(0, history.t.length - this.capacity);
    for (let at = from; at < history.t.length; at += 1) {
      const row = COLUMNS.map((name) => [name, history[name][at] ?? null] as const);
      this.push(Object.fromEntries(row) as Row);
    }
  }

  clear(): void {
    this.head = 0;
    this.rows = 0;
  }

  /** Columns of the rows since `since`, oldest first; what is not known is null, which a chart draws as a gap. */
  since(since: number, names: readonly Column[]): (number | null)[][] {
    let from = this.rows;
    while (from > 0 && (this.columns.t[this.slot(from - 1)] ?? NaN) >= since) from -= 1;
    return names.map((name) => {
      const column = this.columns[name];
      const values: (number | null)[] = [];
      for (let at = from; at < this.rows; at += 1) {
        const value = column[this.slot(at)] ?? NaN;
        values.push(Number.isNaN(value) ? null : value);
      }
      return values;
    });
  }

  private append(row: Row): void {
    if (this.isFull) {
      this.write(this.head, row);
      this.head = (this.head + 1) % this.capacity;
    } else {
      this.write(this.slot(this.rows), row);
      this.rows += 1;
    }
  }

  private slot(at: number): number {
    return (this.head + at) % this.capacity;
  }

  private write(slot: number, row: Row): void {
    for (const name of COLUMNS) this.columns[name][slot] = row[name] ?? NaN;
  }
}
