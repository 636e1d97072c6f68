import { Arrow } from '../drawings/Arrow';
import { Box } from '../drawings/Box';
import { Drawing } from '../drawings/Drawing';
import { CostExample } from './CostExample';
import { cheapest, plainCost, PROMPT_BLOCKS, WORKED_EXAMPLE } from './example';
import { TreeSketch } from './TreeSketch';

const chosen = cheapest(WORKED_EXAMPLE);

const DESCRIPTION =
  'A request reaches the front end and is cut into blocks of tokens. The radix tree says how many leading blocks each worker holds. ' +
  `For a prompt of ${PROMPT_BLOCKS} blocks the costs are: ` +
  WORKED_EXAMPLE.map(
    (one) => `${one.worker} ${plainCost(one)} with ${one.cached} cached and ${one.inUse} in use`,
  ).join('; ') +
  `. The request goes to ${chosen?.worker ?? 'nobody'}. ` +
  'Workers say over the event plane what they stored, removed or cleared, and the tree follows.';

/** How a request finds the worker that has its prompt, from left to right, and how the tree comes to know, from below. */
export function RoutingDrawing() {
  return (
    <Drawing title="KV-aware routing" description={DESCRIPTION} width={1200} height={580} trim={18}>
      <Box
        at={[20, 10, 240, 120]}
        title="Front end"
        lines={['a chat comes in;', 'the template makes', 'one text of it']}
      />
      <Box
        at={[330, 10, 290, 120]}
        title="Tokens to blocks"
        lines={['each block is named by its', 'tokens and all before it']}
      >
        <Chain x={346} y={96} />
      </Box>

      <Box at={[20, 190, 600, 220]} title="Radix tree">
        <TreeSketch />
        <text className="box-line" x={440} y={350}>
          who holds it:
        </text>
        <text className="box-line" x={440} y={370}>
          numbers of workers
        </text>
      </Box>

      <Box at={[700, 10, 480, 400]} title="Cost and decision">
        <text className="box-line" x={714} y={60}>
          blocks to compute + blocks in use; least wins
        </text>
        <CostExample x={716} y={112} />
      </Box>

      <Box
        at={[20, 480, 600, 90]}
        title="Event plane"
        lines={[
          'stored, removed, cleared: each engine says so itself,',
          'directly over ZeroMQ or by way of NATS',
        ]}
      />
      {WORKED_EXAMPLE.map(({ worker }, place) => (
        <Box
          key={worker}
          at={[700 + place * 165, 480, 150, 90]}
          title={worker}
          lines={['engine,', 'KV cache']}
          kind={worker === chosen?.worker ? 'chosen' : 'part'}
        />
      ))}

      <Arrow flow="request" way="260,70 330,70" label={{ text: 'text', at: [294, 70] }} />
      <Arrow
        flow="request"
        way="475,130 475,190"
        label={{ text: 'who holds how much of it?', at: [345, 174] }}
      />
      <Arrow flow="request" way="620,300 700,300" label={{ text: 'overlap', at: [660, 300] }} />
      <Arrow flow="request" way="940,410 940,480" label={{ text: 'the request', at: [1000, 458] }} />
      <Arrow flow="events" way="700,525 620,525" label={{ text: 'events', at: [660, 525] }} />
      <Arrow flow="events" way="320,480 320,410" label={{ text: 'kept up to date', at: [400, 458] }} />
    </Drawing>
  );
}

/** Blocks in a row, each tied to the one before. */
function Chain({ x, y }: { x: number; y: number }) {
  const places = Array.from({ length: 9 }, (_, at) => x + at * 28);
  return (
    <g>
      <path className="chain" d={`M${x},${y + 10} H${x + 8 * 28}`} />
      {places.map((left) => (
        <rect key={left} className="block" x={left} y={y} width={20} height={20} rx={3} />
      ))}
    </g>
  );
}
