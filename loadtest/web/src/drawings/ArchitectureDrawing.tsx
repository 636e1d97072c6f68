import { Arrow, type ArrowProps } from './Arrow';
import { Box, type BoxProps } from './Box';
import { Drawing } from './Drawing';
import { Legend } from './Legend';
import { WorkerRoom } from './WorkerRoom';

const DESCRIPTION =
  'The load generator keeps conversations going and sends their requests to the router. ' +
  'In the router the front end passes a request to the tokens, these ask the index who holds the prompt, ' +
  'the scheduler chooses the worker of least cost, and the proxy sends the request there and streams the answer back. ' +
  'Workers tell the event feeds what their caches store and remove, and the feeds keep the index right. ' +
  'This page asks the administration for modes and explanations. Prometheus reads the metrics of all three, Grafana draws them.';

/** Rooms before their parts: what comes later lies on top. */
const BOXES: readonly BoxProps[] = [
  { at: [20, 10, 195, 390], kind: 'room', title: 'Load generator' },
  { at: [34, 58, 167, 90], title: 'Conversations', lines: ['3 to 5 turns each,', 'long documents'] },
  { at: [34, 183, 167, 90], title: 'Clock', lines: ['first token, pace,', 'cached share'] },
  { at: [34, 308, 167, 78], title: 'This page', lines: ['figures, switches,', 'sweeps'] },

  { at: [290, 10, 590, 390], kind: 'room', title: 'Router' },
  { at: [310, 58, 167, 90], title: 'Front end', lines: ['chat completions,', 'streamed'] },
  { at: [502, 58, 167, 90], title: 'Tokens', lines: ['chat template,', 'blocks of tokens'] },
  { at: [694, 58, 167, 90], title: 'Proxy', lines: ['bytes unchanged,', 'next one if it fails'] },
  { at: [310, 183, 167, 90], title: 'Fleet', lines: ['who is there, and', 'how they are'] },
  { at: [502, 183, 167, 90], title: 'Index', lines: ['radix tree: who', 'holds which blocks'] },
  { at: [694, 183, 167, 90], title: 'Scheduler', lines: ['cost of each worker,', 'the least one wins'] },
  { at: [310, 308, 167, 78], title: 'Administration', lines: ['modes, drains,', 'explanations'] },
  {
    at: [502, 308, 359, 78],
    title: 'Event feeds',
    lines: ['what each engine stores and removes;', 'gaps are noticed and made good'],
  },

  {
    at: [480, 470, 220, 82],
    kind: 'optional',
    title: 'Prometheus',
    lines: ['reads the metrics', 'of all three'],
  },
  {
    at: [800, 470, 220, 82],
    kind: 'optional',
    title: 'Grafana',
    lines: ['draws them beside', 'recorded figures'],
  },
];

const ARROWS: readonly ArrowProps[] = [
  {
    flow: 'request',
    way: '201,103 310,103',
    both: true,
    label: { text: 'requests', at: [252, 103], below: 'answers' },
  },
  { flow: 'request', way: '477,103 502,103' },
  { flow: 'request', way: '585,148 585,183' },
  { flow: 'request', way: '669,228 694,228' },
  { flow: 'request', way: '777,183 777,148' },
  {
    flow: 'request',
    way: '861,103 960,103',
    both: true,
    label: { text: 'requests', at: [920, 103], below: 'answers' },
  },
  {
    flow: 'request',
    way: '201,347 310,347',
    both: true,
    label: { text: 'asks', at: [252, 347], below: 'switches' },
  },

  { flow: 'events', way: '960,347 861,347', label: { text: 'KV events', at: [920, 347] } },
  { flow: 'events', way: '585,308 585,273' },

  { flow: 'metrics', way: '117,400 117,450 530,450 530,470' },
  { flow: 'metrics', way: '590,400 590,470' },
  { flow: 'metrics', way: '1070,400 1070,435 650,435 650,470' },
  { flow: 'metrics', way: '700,511 800,511' },
];

const LEGEND = [
  ['request', 'requests, and answers on the way back'],
  ['events', 'KV events'],
  ['metrics', 'metrics, where Prometheus is running'],
] as const;

/** The demo as a whole: who talks to whom. */
export function ArchitectureDrawing({ workers }: { workers: number | null }) {
  return (
    <Drawing title="Demo architecture" description={DESCRIPTION} width={1200} height={565} trim={18}>
      {BOXES.map((box) => (
        <Box key={box.title} {...box} />
      ))}
      <WorkerRoom x={960} y={10} width={220} height={390} workers={workers} />
      {ARROWS.map((arrow) => (
        <Arrow key={arrow.way} {...arrow} />
      ))}
      <Legend x={24} y={500} entries={LEGEND} />
    </Drawing>
  );
}
