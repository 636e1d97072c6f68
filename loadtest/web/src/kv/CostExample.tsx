import { cheapest, plainCost, PROMPT_BLOCKS, WORKED_EXAMPLE, type Holding } from './example';

type Props = { x: number; y: number };

const PER_BLOCK = 2.75;
const ROW_STEP = 96;

/** The worked example as bars: what is cached costs nothing, the rest of the bar is the cost. */
export function CostExample({ x, y }: Props) {
  const chosen = cheapest(WORKED_EXAMPLE);
  return (
    <g>
      {WORKED_EXAMPLE.map((holding, at) => (
        <Row key={holding.worker} holding={holding} chosen={holding === chosen} x={x} y={y + at * ROW_STEP} />
      ))}
    </g>
  );
}

function Row({ holding, chosen, x, y }: { holding: Holding; chosen: boolean; x: number; y: number }) {
  const { worker, cached, inUse } = holding;
  const toCompute = PROMPT_BLOCKS - cached;
  const at = (blocks: number) => x + blocks * PER_BLOCK;
  return (
    <g className={chosen ? 'cost-row cost-row-chosen' : 'cost-row'} data-cost={plainCost(holding)}>
      {chosen && <rect className="cost-frame" x={x - 12} y={y - 24} width={466} height={88} rx={10} />}
      <text className="box-title" x={x} y={y}>
        {worker}
        {chosen ? ': least cost' : ''}
      </text>
      <rect className="part-cached" x={x} y={y + 12} width={cached * PER_BLOCK} height={20} />
      <rect className="part-compute" x={at(cached)} y={y + 12} width={toCompute * PER_BLOCK} height={20} />
      <rect className="part-in-use" x={at(PROMPT_BLOCKS)} y={y + 12} width={inUse * PER_BLOCK} height={20} />
      <text className="box-line" x={x} y={y + 52}>
        {`${cached} cached · ${toCompute} to compute + ${inUse} in use`}
      </text>
      <text className="cost-figure" x={x + 442} y={y + 34}>
        {plainCost(holding)}
      </text>
    </g>
  );
}
