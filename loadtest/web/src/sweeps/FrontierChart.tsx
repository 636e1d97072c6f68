import { Drawing } from '../drawings/Drawing';
import { ms } from '../format';
import { modeName } from '../names';
import type { Labels, Standing } from '../wire';
import { Axes } from './Axes';
import { CurveLine } from './CurveLine';
import { ceiling, type Curve, type CurvePoint } from './frontier';
import { looksOf } from './looks';
import { Marker } from './Marker';
import { FRAME, scaleOf, type Scale } from './scale';

type Props = {
  curves: readonly Curve[];
  objective: number;
  standings: readonly Standing[];
  labels: Labels;
  /** Where the load is that runs now. */
  live: CurvePoint | null;
};

/** Time to first token over load: how far up each mode keeps its promise. */
export function FrontierChart({ curves, objective, standings, labels, live }: Props) {
  const levels = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point.level)))].sort(
    (a, b) => a - b,
  );
  if (levels.length === 0) return <p className="quiet">Nothing is measured yet.</p>;
  const highest = ceiling(curves, objective);
  const scale = scaleOf(levels, highest);
  const looks = looksOf(curves);
  const isWithin = live !== null && live.level >= Math.min(...levels) && live.level <= Math.max(...levels);
  const words = standings
    .map((standing) => `${modeName(standing.mode, labels)}: ${standing.words}`)
    .join('; ');
  return (
    <figure className="frontier">
      <figcaption className="frontier__legend">
        TTFT p95 (ms)
        {curves.map((curve) => {
          const look = looks.get(curve.name);
          return (
            <span key={curve.name} style={{ color: look?.colour }}>
              <svg className="frontier__key" viewBox="0 0 40 16" aria-hidden="true">
                <path d="M0,8 H40" strokeDasharray={curve.recorded ? '5 4' : undefined} />
                {look && !curve.recorded && <Marker shape={look.shape} x={20} y={8} />}
              </svg>
              {curve.recorded ? curve.name : modeName(curve.name, labels)}
            </span>
          );
        })}
      </figcaption>
      <Drawing
        title="SLO frontier"
        description={`TTFT p95 over conversations at a time. ${words}`}
        width={FRAME.width}
        height={FRAME.height}
      >
        <Axes levels={levels} ceiling={highest} objective={objective} scale={scale} />
        {curves.map((curve) => {
          const look = looks.get(curve.name);
          const standing = curve.recorded ? undefined : standings.find((one) => one.mode === curve.name);
          return (
            look && (
              <CurveLine
                key={curve.name}
                curve={curve}
                look={look}
                scale={scale}
                holdsTo={standing?.holds_to ?? null}
              />
            )
          );
        })}
        {live !== null && isWithin && <LivePoint at={live} scale={scale} />}
      </Drawing>
    </figure>
  );
}

function LivePoint({ at, scale }: { at: CurvePoint; scale: Scale }) {
  return (
    <g className="live-point" data-testid="live-point">
      <Marker shape="diamond" x={scale.x(at.level)} y={scale.y(at.ms)} size={8} />
      <text x={scale.x(at.level) + 10} y={scale.y(at.ms) - 14}>
        live {ms(at.ms)}
      </text>
    </g>
  );
}
