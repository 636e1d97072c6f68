import { Arrow } from './Arrow';
import { Blocks } from './Blocks';

/** The worker that holds a prompt's beginning gets it. */
export function WarmCache() {
  return (
    <>
      <text x={12} y={24}>
        prompt
      </text>
      <Blocks x={12} y={34} count={8} cached={6} />
      <Arrow flow="request" way="160,41 190,41 190,84 160,84" />
      <text x={12} y={70}>
        worker 2
      </text>
      <Blocks x={12} y={78} count={6} cached={6} />
      <rect className="frame-chosen" x={4} y={54} width={154} height={48} rx={6} />
    </>
  );
}

/** Three loads, and the request at the least one. */
export function Balance() {
  return (
    <>
      {[150, 60, 112].map((load, at) => (
        <g key={load}>
          <rect className="track" x={12} y={18 + at * 32} width={190} height={18} rx={4} />
          <rect
            className={at === 1 ? 'load load-chosen' : 'load'}
            x={12}
            y={18 + at * 32}
            width={load}
            height={18}
            rx={4}
          />
        </g>
      ))}
      <Arrow flow="request" way="252,59 208,59" />
    </>
  );
}

/** An engine's words change the index. */
export function Events() {
  return (
    <>
      <text x={12} y={24}>
        engine
      </text>
      <rect className="frame" x={12} y={34} width={64} height={64} rx={6} />
      <Blocks x={24} y={46} count={2} cached={2} />
      <Blocks x={24} y={66} count={2} cached={1} />
      <Arrow flow="events" way="82,52 180,52" label={{ text: 'stored', at: [128, 52] }} />
      <Arrow flow="events" way="82,82 180,82" label={{ text: '', at: [128, 82], below: 'removed' }} />
      <text x={186} y={24}>
        index
      </text>
      <Blocks x={188} y={46} count={3} cached={3} />
      <Blocks x={188} y={76} count={3} cached={2} />
    </>
  );
}

/** Full, full, and one with room. */
export function Room() {
  return (
    <>
      {[5, 5, 3].map((busy, worker) => (
        <g key={worker}>
          {Array.from({ length: 5 }, (_, slot) => (
            <circle
              key={slot}
              className={slot < busy ? 'slot slot-busy' : 'slot'}
              cx={26 + slot * 28}
              cy={28 + worker * 32}
              r={10}
            />
          ))}
          <text x={164} y={33 + worker * 32}>
            {busy === 5 ? 'full' : ''}
          </text>
        </g>
      ))}
      <Arrow flow="request" way="252,92 160,92" />
    </>
  );
}
