// Readers take what came over the wire and give it a type, or refuse it with the path at which it is not of that form.
// Fields nobody asked for are passed over, so that a newer server can say more.

export type Reader<T> = (value: unknown, at: string) => T;
export type Read<R> = R extends Reader<infer T> ? T : never;

class Refused extends Error {}

function refuse(value: unknown, at: string, expected: string): never {
  const got = value === null ? 'null' : Array.isArray(value) ? 'a list' : typeof value;
  throw new Refused(`${at} is ${got}, expected ${expected}`);
}

export const number: Reader<number> = (value, at) =>
  typeof value === 'number' ? value : refuse(value, at, 'a number');

export const text: Reader<string> = (value, at) =>
  typeof value === 'string' ? value : refuse(value, at, 'a text');

export const flag: Reader<boolean> = (value, at) =>
  typeof value === 'boolean' ? value : refuse(value, at, 'true or false');

/** What is left out and what is null are the same: not known. */
export function maybe<T>(reader: Reader<T>): Reader<T | null> {
  return (value, at) => (value === undefined || value === null ? null : reader(value, at));
}

/** Where an older server says nothing. */
export function or<T>(reader: Reader<T>, otherwise: T): Reader<T> {
  return (value, at) => (value === undefined || value === null ? otherwise : reader(value, at));
}

export function list<T>(reader: Reader<T>): Reader<T[]> {
  return (value, at) =>
    Array.isArray(value)
      ? value.map((item, index) => reader(item, `${at}[${index}]`))
      : refuse(value, at, 'a list');
}

/** Values by names that only the server knows. */
export function byName<T>(reader: Reader<T>): Reader<Record<string, T>> {
  return (value, at) =>
    Object.fromEntries(
      Object.entries(plain(value, at)).map(([name, item]) => [name, reader(item, `${at}.${name}`)]),
    );
}

export function oneOf<const T extends string>(...words: T[]): Reader<T> {
  return (value, at) => words.find((word) => word === value) ?? refuse(value, at, words.join(' or '));
}

function plain(value: unknown, at: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) refuse(value, at, 'an object');
  return value as Record<string, unknown>;
}

type Shape = Record<string, Reader<unknown>>;
type Shaped<S extends Shape> = { [K in keyof S]: Read<S[K]> };

export function object<S extends Shape>(shape: S): Reader<Shaped<S>> {
  const fields = Object.entries(shape);
  return (value, at) => {
    const given = plain(value, at);
    const read: Record<string, unknown> = {};
    for (const [name, reader] of fields) read[name] = reader(given[name], `${at}.${name}`);
    return read as Shaped<S>;
  };
}
