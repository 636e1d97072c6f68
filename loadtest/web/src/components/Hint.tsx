import { useId, useRef, type KeyboardEvent } from 'react';

import { HINTS, type HintOf } from '../words';

type HintProps = {
  of: HintOf;
  /** The figure's name, for the button's own name. */
  name: string;
  /** What is true of this place only. */
  more?: string | undefined;
};

const GAP_PX = 6;

/** A question mark that answers what a figure means, beside it and above everything: no table cuts it off. */
export function Hint({ of, name, more }: HintProps) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const bubble = useRef<HTMLSpanElement>(null);

  const show = () => {
    if (!button.current || !bubble.current) return;
    bubble.current.showPopover();
    const at = button.current.getBoundingClientRect();
    const size = bubble.current.getBoundingClientRect();
    const isRoomAtRight = at.right + GAP_PX + size.width < window.innerWidth;
    const left = isRoomAtRight ? at.right + GAP_PX : at.left - GAP_PX - size.width;
    const top = Math.min(at.top, window.innerHeight - size.height - GAP_PX);
    bubble.current.style.left = `${Math.max(GAP_PX, left)}px`;
    bubble.current.style.top = `${Math.max(GAP_PX, top)}px`;
  };
  const hide = () => {
    if (bubble.current?.matches(':popover-open')) bubble.current.hidePopover();
  };
  const escape = (event: KeyboardEvent) => {
    if (event.key === 'Escape') hide();
  };

  return (
    <span className="hint" onMouseEnter={show} onMouseLeave={hide}>
      <button
        ref={button}
        type="button"
        className="hint__button"
        aria-label={`What is ${name}?`}
        aria-describedby={id}
        onFocus={show}
        onBlur={hide}
        onKeyDown={escape}
      >
        <span aria-hidden="true">?</span>
      </button>
      <span ref={bubble} id={id} role="tooltip" popover="manual" className="hint__bubble">
        {HINTS[of]}
        {more !== undefined && ` ${more}`}
      </span>
    </span>
  );
}
