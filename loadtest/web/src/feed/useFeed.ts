import { useSyncExternalStore } from 'react';

import { feed } from './feed';
import type { World } from './store';

/** A part of the world. The selector gives what is there, not something it makes: a new object each time never settles. */
export function useFeed<T>(select: (world: World) => T): T {
  return useSyncExternalStore(feed.subscribe, () => select(feed.snapshot()));
}

export function useConnected(): boolean {
  return useFeed((world) => world.connection === 'open');
}
