import { useId, useState, type FormEvent } from 'react';

import { api, messageOf } from '../api';
import { Complaint } from '../components/Complaint';
import { duration } from '../format';
import { go } from '../routes';
import type { SweepDefaults, SweepKind } from '../wire';
import { CourseFields } from './CourseFields';
import { KIND_ORDER, KINDS } from './kinds';
import { ModeChoice } from './ModeChoice';
import { draftOf, lengthS, planOf, type Draft } from './plan';
import { useLoaded, useWhyNot } from './useWhyNot';

/** What is compared unless somebody chooses otherwise. */
const USUAL = ['round_robin', 'kvlane'];

function fresh(kind: SweepKind, { levels, modes, scenarios }: SweepDefaults): Draft {
  const usual = USUAL.filter((mode) => modes[kind].includes(mode));
  const chosen = usual.length > 0 ? usual : modes[kind].slice(0, 2);
  return draftOf(kind, levels, chosen, scenarios[0]?.name ?? '');
}

/** What a sweep is to measure; what is wrong with it is said before the server has to. */
export function SweepForm({ defaults }: { defaults: SweepDefaults }) {
  const [draft, setDraft] = useState<Draft>(() => fresh('virtual', defaults));
  const [refusal, setRefusal] = useState<string | null>(null);
  const [sent, setSent] = useState(false);
  const whyNot = useWhyNot(draft.kind, draft.besideLoad);
  const isLoaded = useLoaded();
  const id = useId();
  // Leave to run beside a load is worth nothing once that has ended.
  const plan = planOf({ ...draft, besideLoad: draft.besideLoad && isLoaded });
  const takes = 'wrong' in plan ? null : lengthS(plan);

  const change = (by: Partial<Draft>) => {
    setDraft({ ...draft, ...by });
    setRefusal(null);
  };
  const start = async (event: FormEvent) => {
    event.preventDefault();
    if ('wrong' in plan) return setRefusal(plan.wrong);
    if (sent) return;
    setSent(true);
    try {
      go({ page: 'sweep', id: (await api.startSweep(plan)).id });
    } catch (problem) {
      setRefusal(messageOf(problem));
      setSent(false);
    }
  };

  return (
    <form className="sweep-form" noValidate onSubmit={(event) => void start(event)}>
      <fieldset className="sweep-form__choice">
        <legend>Clock</legend>
        {KIND_ORDER.map((kind) => (
          <label key={kind}>
            <input
              type="radio"
              name={`${id}kind`}
              checked={draft.kind === kind}
              onChange={() => change({ ...fresh(kind, defaults), levels: draft.levels })}
            />
            {KINDS[kind].label} <small className="quiet">{KINDS[kind].about}</small>
          </label>
        ))}
      </fieldset>
      <div className="field field--wide">
        <label htmlFor={`${id}levels`}>Levels, conversations at a time</label>
        <input
          id={`${id}levels`}
          type="text"
          inputMode="numeric"
          value={draft.levels}
          onChange={(event) => change({ levels: event.target.value })}
        />
      </div>
      <ModeChoice
        offered={defaults.modes[draft.kind]}
        labels={defaults.labels}
        chosen={draft.modes}
        onChange={(modes) => change({ modes })}
      />
      <CourseFields draft={draft} scenarios={defaults.scenarios} change={change} />
      {isLoaded && draft.kind === 'virtual' && (
        <label className="sweep-form__beside">
          <input
            type="checkbox"
            checked={draft.besideLoad}
            onChange={(event) => change({ besideLoad: event.target.checked })}
          />
          Run beside the load (both will be slower)
        </label>
      )}
      <div className="sweep-form__do">
        <button type="submit" className="button button--primary" disabled={whyNot !== null || sent}>
          Start sweep
        </button>
        <span className="quiet" data-testid="sweep-takes">
          {whyNot ?? (takes === null ? '' : `takes ${duration(takes)}`)}
        </span>
      </div>
      {refusal !== null && <Complaint>{refusal}</Complaint>}
    </form>
  );
}
