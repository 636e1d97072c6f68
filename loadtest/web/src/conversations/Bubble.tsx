import { useId, useState } from 'react';

import { count } from '../format';

type Props = { role: 'user' | 'assistant'; text: string; leftOut: number };

/** What is shown of a long text before somebody asks for all of it: a document's end has the question. */
const BEGINNING = 320;
const END = 260;
/** Less than this hidden is not worth a button. */
const WORTH_HIDING = 200;

/** What one side said, if it did. The server keeps a long text without its middle and says how much is missing. */
export function Bubble({ role, text, leftOut }: Props) {
  const [whole, setWhole] = useState(false);
  const id = useId();
  const isLong = text.length > BEGINNING + END + WORTH_HIDING;
  if (text === '' && leftOut === 0) return null;
  const shown = isLong && !whole ? `${text.slice(0, BEGINNING)} […] ${text.slice(-END)}` : text;
  return (
    <div className={`bubble bubble-${role}`} data-role={role}>
      <p className="bubble__who">{role === 'user' ? 'User' : 'Assistant'}</p>
      <p className="bubble__text" id={id}>
        {shown}
      </p>
      {(isLong || leftOut > 0) && (
        <p className="bubble__more">
          {leftOut > 0 && <span>{count(leftOut)} characters left out</span>}
          {isLong && (
            <button
              type="button"
              className="bubble__button"
              aria-expanded={whole}
              aria-controls={id}
              onClick={() => setWhole(!whole)}
            >
              {whole ? 'Show less' : 'Show more'}
            </button>
          )}
        </p>
      )}
    </div>
  );
}
