import { useId } from 'react';

import { useConnected, useFeed } from '../feed/useFeed';
import { count } from '../format';
import type { Slider } from '../wire';
import { WHY_NOT, whyNot } from '../words';
import type { ConcurrencyChoice } from './useConcurrency';

/** As long as nobody greeted us. */
const USUAL = { min: 60, max: 180, step: 20 };

/** How many conversations are held at a time. */
export function ConcurrencySlider({ choice }: { choice: ConcurrencyChoice }) {
  const id = useId();
  const connected = useConnected();
  const slider = useFeed((world) => world.hello?.slider ?? USUAL);
  const allowed = useFeed((world) => world.hello?.can.level ?? false);
  const sweep = useFeed((world) => world.state?.sweep ?? null);
  const active = useFeed((world) => world.sample?.active ?? null);
  const reason = whyNot(connected, allowed, sweep, WHY_NOT.fixed);
  const value = choice.shown ?? slider.min;
  return (
    <div className="slider">
      <label htmlFor={id}>Conversations at a time</label>
      <output className="slider__value" htmlFor={id}>
        {choice.shown === null ? count(null) : count(value)}
      </output>
      <input
        id={id}
        type="range"
        min={slider.min}
        max={slider.max}
        step={slider.step}
        value={value}
        disabled={reason !== null}
        title={reason ?? undefined}
        aria-valuetext={choice.shown === null ? 'not known' : `${value} conversations`}
        onChange={(event) => choice.pick(Number(event.target.value))}
        onPointerDown={choice.hold}
        onPointerUp={choice.release}
        onPointerCancel={choice.release}
        onLostPointerCapture={choice.release}
      />
      <span className="slider__ends quiet small" aria-hidden="true">
        {ticksOf(slider).map((tick) => (
          <span key={tick}>{tick}</span>
        ))}
      </span>
      <span className="slider__active quiet" data-testid="active">
        {count(active)} active
      </span>
    </div>
  );
}

const MOST_TICKS = 10;

/** Every step where there is room for them, else both ends. */
function ticksOf({ min, max, step }: Slider): number[] {
  const steps = Math.floor((max - min) / step);
  if (steps >= MOST_TICKS || (max - min) % step !== 0) return [min, max];
  return Array.from({ length: steps + 1 }, (_, at) => min + at * step);
}
