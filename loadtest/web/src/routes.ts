// Pages and their addresses. Hashes need no help from the server and work offline.

import { useSyncExternalStore } from 'react';

export type Route =
  | { page: 'dashboard' }
  | { page: 'conversations' }
  | { page: 'conversation'; id: number }
  | { page: 'architecture' }
  | { page: 'kv-routing' }
  | { page: 'features' }
  | { page: 'sweeps' }
  | { page: 'sweep'; id: number };

export type Tab = Exclude<Route['page'], 'conversation' | 'sweep'>;

/** What is not an address of ours is the dashboard. */
export function parse(hash: string): Route {
  const [first = '', second, ...more] = hash.replace(/^#?\/?/, '').split('/');
  const id = second !== undefined && /^\d{1,15}$/.test(second) ? Number(second) : null;
  if (more.length > 0 || (second !== undefined && id === null)) return { page: 'dashboard' };
  switch (first) {
    case 'conversations':
      return id === null ? { page: 'conversations' } : { page: 'conversation', id };
    case 'sweeps':
      return id === null ? { page: 'sweeps' } : { page: 'sweep', id };
    case 'architecture':
    case 'kv-routing':
    case 'features':
      return id === null ? { page: first } : { page: 'dashboard' };
    default:
      return { page: 'dashboard' };
  }
}

export function href(route: Route): string {
  switch (route.page) {
    case 'dashboard':
      return '#/';
    case 'conversation':
      return `#/conversations/${route.id}`;
    case 'sweep':
      return `#/sweeps/${route.id}`;
    default:
      return `#/${route.page}`;
  }
}

export function go(route: Route): void {
  window.location.hash = href(route);
}

/** The tab under which a page is found. */
export function tabOf(route: Route): Tab {
  if (route.page === 'conversation') return 'conversations';
  if (route.page === 'sweep') return 'sweeps';
  return route.page;
}

function subscribe(changed: () => void): () => void {
  window.addEventListener('hashchange', changed);
  return () => window.removeEventListener('hashchange', changed);
}

export function useRoute(): Route {
  return parse(useSyncExternalStore(subscribe, () => window.location.hash));
}
