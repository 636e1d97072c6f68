// Numbers as people read them. Every function shows a dash for what is not known.

export const DASH = '—';

export type Known = number | null | undefined;

const formats = new Map<number, Intl.NumberFormat>();

function format(digits: number): Intl.NumberFormat {
  let made = formats.get(digits);
  if (!made) {
    made = new Intl.NumberFormat('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
    formats.set(digits, made);
  }
  return made;
}

function isKnown(value: Known): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

/** `12345.678` with one digit: `12,345.7`. */
export function fixed(value: Known, digits: number): string {
  if (!isKnown(value)) return DASH;
  const shown = format(digits).format(value);
  // What rounds to nothing has no sign.
  return /^-[0.,]*$/.test(shown) ? shown.slice(1) : shown;
}

/** `12,345` */
export function count(value: Known): string {
  return fixed(value, 0);
}

/** `412 ms`, `28.1 ms` with one digit. */
export function ms(value: Known, digits = 0): string {
  return isKnown(value) ? `${fixed(value, digits)} ms` : DASH;
}

/** An objective as it was written: `600 ms`, `7.5 ms`. */
export function objectiveMs(value: Known): string {
  return ms(value, 1).replace('.0 ms', ' ms');
}

/** `24.6 s` */
export function seconds(value: Known, digits = 1): string {
  return isKnown(value) ? `${fixed(value, digits)} s` : DASH;
}

/** `94.3%` */
export function percent(value: Known, digits = 1): string {
  return isKnown(value) ? `${fixed(value, digits)}%` : DASH;
}

/** `+31.9%`, `-1.1%`, `+0.0%` */
export function signedPercent(value: Known): string {
  if (!isKnown(value)) return DASH;
  const shown = fixed(value, 1);
  return `${shown.startsWith('-') ? '' : '+'}${shown}%`;
}

/** How long something took: `41 s`, `2 min 5 s`, `3 h 7 min`. */
export function duration(value: Known): string {
  if (!isKnown(value) || value < 0) return DASH;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Time of day of seconds since 1970: `14:05:09`. */
export function clock(t: Known): string {
  if (!isKnown(t)) return DASH;
  const time = new Date(t * 1000);
  return [time.getHours(), time.getMinutes(), time.getSeconds()]
    .map((part) => String(part).padStart(2, '0'))
    .join(':');
}

/** `1.4 MiB` */
export function bytes(value: Known): string {
  if (!isKnown(value)) return DASH;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let left = value;
  let unit = 0;
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${fixed(left, unit === 0 ? 0 : 1)} ${units[unit]}`;
}
