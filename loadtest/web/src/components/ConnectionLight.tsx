import { useFeed } from '../feed/useFeed';
import { CONNECTION, RUN } from '../words';

/** Whether the server is there, and what its load does. */
export function ConnectionLight() {
  const connection = useFeed((world) => world.connection);
  const run = useFeed((world) => world.state?.run ?? null);
  return (
    <div className="connection" role="status" data-testid="connection" data-connection={connection}>
      <span className="connection__light" aria-hidden="true" />
      <span>
        <strong>{CONNECTION[connection]}</strong>
        {connection === 'open' && run !== null && <span className="connection__run">, {RUN[run]}</span>}
      </span>
    </div>
  );
}
