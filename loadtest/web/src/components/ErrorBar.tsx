import { feed } from '../feed/feed';
import { useFeed } from '../feed/useFeed';

/** What a command came to when it did not come to anything. */
export function ErrorBar() {
  const error = useFeed((world) => world.error);
  return (
    <div role="alert">
      {error !== null && (
        <div className="error-bar" data-testid="error">
          <span>{error}</span>
          <button type="button" className="button button--quiet" onClick={() => feed.forgive()}>
            Dismiss
          </button>
        </div>
      )}
    </div>
  );
}
