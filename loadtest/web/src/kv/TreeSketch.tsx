import { Blocks } from '../drawings/Blocks';

type Run = {
  x: number;
  y: number;
  blocks: number;
  name: string;
  /** Numbers of the workers that hold it. */
  holders: readonly number[];
};

const STEP = 18;

const DOCUMENT: Run = { x: 40, y: 292, blocks: 9, name: 'a document', holders: [1, 2, 3] };
const BRANCHES: readonly Run[] = [
  { x: 262, y: 250, blocks: 8, name: 'conversation 17', holders: [2] },
  { x: 262, y: 334, blocks: 5, name: 'conversation 23', holders: [1, 3] },
];

/** A tree of three runs: what a document's conversations share is there once, and each run knows who holds it. */
export function TreeSketch() {
  const end = DOCUMENT.x + DOCUMENT.blocks * STEP;
  return (
    <g className="tree-sketch">
      {BRANCHES.map((branch) => (
        <path
          key={branch.name}
          d={`M${end},${DOCUMENT.y + 7.5} C${end + 30},${DOCUMENT.y + 7.5} ${branch.x - 36},${branch.y + 7.5} ${branch.x - 6},${branch.y + 7.5}`}
        />
      ))}
      {[DOCUMENT, ...BRANCHES].map((run) => (
        <RunOfBlocks key={run.name} run={run} />
      ))}
    </g>
  );
}

function RunOfBlocks({ run }: { run: Run }) {
  return (
    <g>
      <text className="box-line" x={run.x} y={run.y - 8}>
        {run.name}
      </text>
      <Blocks x={run.x} y={run.y} count={run.blocks} cached={run.blocks} />
      {run.holders.map((worker, at) => (
        <g key={worker} className="holder">
          <circle cx={run.x + 10 + at * 26} cy={run.y + 33} r={10} />
          <text x={run.x + 10 + at * 26} y={run.y + 38}>
            {worker}
          </text>
        </g>
      ))}
    </g>
  );
}
