import { Card } from '../components/Card';
import { useFeed } from '../feed/useFeed';
import type { Workers } from '../wire';
import { WorkerCard } from './WorkerCard';

/** The machines behind it. */
export function Infrastructure() {
  const isDown = useFeed((world) => world.connection === 'down');
  const seen = useFeed((world) => world.workers);
  const gpu = useFeed((world) => world.workers?.gpu ?? null);
  const model = useFeed((world) => world.workers?.model ?? world.hello?.model ?? null);
  const header = [gpu, model].filter((part) => part !== null).join(' · ');
  return (
    <Card title="Infrastructure" aside={<span data-testid="hardware">{header}</span>}>
      <div role="status">
        {seen?.prometheus === 'unavailable' && (
          <p className="notice infrastructure__notice">Prometheus unavailable</p>
        )}
      </div>
      {seen === null || seen.workers.length === 0 ? (
        <p className="quiet">No workers known yet.</p>
      ) : (
        <ul className="workers" data-stale={isDown}>
          {seen.workers.map((worker) => (
            <WorkerCard key={worker.name} worker={worker} />
          ))}
        </ul>
      )}
      {seen !== null && seen.workers.length > 0 && (
        <p className="infrastructure__source quiet small" data-testid="workers-from">
          {sourceOf(seen)}
        </p>
      )}
    </Card>
  );
}

function sourceOf(seen: Workers): string {
  return seen.from === 'prometheus' ? 'from Prometheus' : 'from the workers’ own metrics';
}
