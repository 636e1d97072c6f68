import { describe, expect, test } from 'vitest';

import { href, parse, tabOf, type Route } from '../../src/routes';

const ROUTES: [string, Route][] = [
  ['#/', { page: 'dashboard' }],
  ['#/conversations', { page: 'conversations' }],
  ['#/conversations/17', { page: 'conversation', id: 17 }],
  ['#/architecture', { page: 'architecture' }],
  ['#/kv-routing', { page: 'kv-routing' }],
  ['#/features', { page: 'features' }],
  ['#/sweeps', { page: 'sweeps' }],
  ['#/sweeps/3', { page: 'sweep', id: 3 }],
];

describe('addresses', () => {
  test.each(ROUTES)('%s and back', (hash, route) => {
    expect(parse(hash)).toEqual(route);
    expect(href(route)).toBe(hash);
  });

  test.each([
    '',
    '#',
    '#/nothing',
    '#/conversations/x',
    '#/conversations/1/2',
    '#/features/1',
    '#/sweeps/-1',
  ])('"%s" is the dashboard', (hash) => expect(parse(hash)).toEqual({ page: 'dashboard' }));

  test('a conversation and a sweep are found under their tabs', () => {
    expect(tabOf({ page: 'conversation', id: 1 })).toBe('conversations');
    expect(tabOf({ page: 'sweep', id: 1 })).toBe('sweeps');
    expect(tabOf({ page: 'features' })).toBe('features');
  });
});
