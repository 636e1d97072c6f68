import { Arrow } from './Arrow';
import { plainCost, PROMPT_BLOCKS, WORKED_EXAMPLE } from '../kv/example';
import { Blocks } from './Blocks';

/** One worker fails, the next one answers. */
export function Failover() {
  return (
    <>
      <rect className="frame" x={12} y={40} width={56} height={40} rx={6} />
      <rect className="frame" x={182} y={10} width={64} height={38} rx={6} />
      <rect className="frame frame-chosen" x={182} y={72} width={64} height={38} rx={6} />
      <path className="failed" d="M72,52 L150,32 M142,22 L160,42 M160,22 L142,42" />
      <Arrow flow="request" way="72,68 182,91" />
      <text x={196} y={97}>
        next
      </text>
    </>
  );
}

/** Chunks on their way, the same on both sides. */
export function AnyApi() {
  return (
    <>
      <rect className="frame" x={100} y={16} width={60} height={88} rx={6} />
      <text x={108} y={36}>
        router
      </text>
      <Arrow flow="request" way="12,54 248,54" />
      <Blocks x={16} y={72} count={4} cached={4} />
      <Blocks x={176} y={72} count={4} cached={4} />
      <Arrow flow="request" way="248,98 12,98" />
    </>
  );
}

/** Terms side by side, the least sum marked. */
export function Explained() {
  return (
    <>
      <rect className="frame-chosen" x={8} y={46} width={240} height={28} rx={6} />
      {WORKED_EXAMPLE.map((holding, at) => (
        <g key={holding.worker}>
          <text x={18} y={33 + at * 32}>
            {holding.worker}
          </text>
          <text className="figure-number" x={148} y={33 + at * 32}>
            {PROMPT_BLOCKS - holding.cached}
          </text>
          <text className="figure-number" x={188} y={33 + at * 32}>{`+ ${holding.inUse}`}</text>
          <text className="figure-number figure-sum" x={238} y={33 + at * 32}>
            {plainCost(holding)}
          </text>
        </g>
      ))}
    </>
  );
}

/** A gauge that stays below its limit. */
export function Bounded() {
  return (
    <>
      <rect className="track" x={12} y={52} width={236} height={24} rx={4} />
      <rect className="load load-chosen" x={12} y={52} width={176} height={24} rx={4} />
      <path className="limit" d="M216,36 V92" />
      <text x={12} y={40}>
        index, in bytes
      </text>
      <text x={190} y={108}>
        budget
      </text>
    </>
  );
}
