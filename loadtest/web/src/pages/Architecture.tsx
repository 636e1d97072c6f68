import { Card } from '../components/Card';
import { ArchitectureDrawing } from '../drawings/ArchitectureDrawing';
import { useFeed } from '../feed/useFeed';
import '../styles/drawings.css';

/** What runs in this demo and who talks to whom. */
export default function Architecture() {
  const workers = useFeed((world) => world.workers?.workers.length ?? null);
  const target = useFeed((world) => world.hello?.target ?? null);
  return (
    <Card title="Demo Architecture">
      <p className="lead">
        A load generator keeps conversations going. The router sends each turn to the worker that has most of
        it cached, as far as load allows.
      </p>
      <ArchitectureDrawing workers={workers} />
      {target !== null && <p className="quiet">Here: {target}</p>}
    </Card>
  );
}
