import { useId } from 'react';

import type { SweepDefaults } from '../wire';
import { NumberField } from './NumberField';
import type { Draft } from './plan';

type Props = { draft: Draft; scenarios: SweepDefaults['scenarios']; change: (by: Partial<Draft>) => void };

/** How each level is measured: by the clock, or on a virtual one. */
export function CourseFields({ draft, scenarios, change }: Props) {
  return draft.kind === 'live' ? (
    <div className="sweep-form__fields">
      <NumberField
        label="Repeats"
        value={draft.repeats}
        min={1}
        max={64}
        onChange={(repeats) => change({ repeats })}
      />
      <NumberField
        label="Warm-up, s"
        value={draft.warmUpS}
        min={0}
        max={3600}
        onChange={(warmUpS) => change({ warmUpS })}
      />
      <NumberField
        label="Window, s"
        value={draft.windowS}
        min={1}
        max={3600}
        onChange={(windowS) => change({ windowS })}
      />
      <NumberField
        label="Snapshots"
        value={draft.snapshots}
        min={1}
        max={60}
        onChange={(snapshots) => change({ snapshots })}
      />
      <NumberField
        label="Filling caches, s"
        value={draft.fillS}
        min={0}
        max={3600}
        onChange={(fillS) => change({ fillS })}
      />
    </div>
  ) : (
    <div className="sweep-form__fields">
      <Scenario draft={draft} scenarios={scenarios} change={change} />
      <NumberField
        label="Seeds"
        value={draft.seeds}
        min={1}
        max={64}
        onChange={(seeds) => change({ seeds })}
      />
    </div>
  );
}

function Scenario({ draft, scenarios, change }: Props) {
  const id = useId();
  const about = scenarios.find((scenario) => scenario.name === draft.scenario)?.about;
  return (
    <div className="field field--wide">
      <label htmlFor={id}>Scenario</label>
      <select
        id={id}
        value={draft.scenario}
        aria-describedby={`${id}about`}
        onChange={(event) => change({ scenario: event.target.value })}
      >
        {scenarios.map(({ name }) => (
          <option key={name} value={name}>
            {name.replaceAll('_', ' ')}
          </option>
        ))}
      </select>
      <small id={`${id}about`} className="quiet">
        {about}
      </small>
    </div>
  );
}
