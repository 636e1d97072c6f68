// The one feed of this page: its store, its socket, and what is asked anew whenever a server greets us.

import { address } from '../api';
import { BaselinesRefresh } from './refresh';
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
  const baselines = new BaselinesRefresh(feed);
  const socket = new Socket(
    {
      frame: (text) => {
        if (feed.hear(text)) baselines.start();
      },
      down: () => {
        baselines.stop();
        feed.disconnected();
      },
    },
    () => new WebSocket(target),
  );
  window.addEventListener('online', () => socket.retryNow());
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) socket.retryNow();
  });
  socket.start();
}
