// The one feed of this page: its store, its socket, and what is asked anew whenever a server greets us.

import { address, api, messageOf } from '../api';
import { Socket } from './socket';
import { Store } from './store';

/** Frames do not come in a tab that is not looked at. */
function nextFrame(publish: () => void): void {
  if (document.hidden) setTimeout(publish, 100);
  else requestAnimationFrame(publish);
}

export const feed = new Store(nextFrame);

export function startFeed(): void {
  const target = address('api/feed').replace(/^http/, 'ws');
  const socket = new Socket(
    {
      frame: (text) => {
        if (feed.hear(text)) void refreshBaselines();
      },
      down: () => feed.disconnected(),
    },
    () => new WebSocket(target),
  );
  window.addEventListener('online', () => socket.retryNow());
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) socket.retryNow();
  });
  socket.start();
}

async function refreshBaselines(): Promise<void> {
  try {
    feed.compareWith(await api.baselines());
  } catch (problem) {
    feed.complain(`figures to compare with: ${messageOf(problem)}`);
  }
}
