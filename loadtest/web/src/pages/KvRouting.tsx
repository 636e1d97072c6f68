import { Card } from '../components/Card';
import { useFeed } from '../feed/useFeed';
import { ExplainForm } from '../kv/ExplainForm';
import { LiveTree } from '../kv/LiveTree';
import { RoutingDrawing } from '../kv/RoutingDrawing';
import '../styles/drawings.css';
import '../styles/kv.css';

/** How a request finds its cache: drawn, as the tree is now, and for a prompt of one's own. */
export default function KvRouting() {
  const can = useFeed((world) => world.hello?.can ?? null);
  return (
    <>
      <Card title="KV Routing">
        <p className="lead">
          A worker that has the beginning of a prompt in its KV cache computes only the rest. The router knows
          who has what.
        </p>
        <RoutingDrawing />
      </Card>
      <Card title="The tree as it is now">
        {can?.tree ? <LiveTree /> : <NotHere connected={can !== null} what="The router’s tree" />}
      </Card>
      <Card title="Where would this prompt go?">
        {can?.explain ? <ExplainForm /> : <NotHere connected={can !== null} what="An explanation" />}
      </Card>
    </>
  );
}

function NotHere({ connected, what }: { connected: boolean; what: string }) {
  return (
    <p className="quiet">
      {connected
        ? `${what} is not available: the page was started without the router’s administration address (--admin-url).`
        : 'Not connected yet.'}
    </p>
  );
}
