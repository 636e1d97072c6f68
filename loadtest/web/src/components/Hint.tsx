import { useEffect, useId, useRef, useState } from 'react';

import { HINTS, type HintOf } from '../words';

type HintProps = {
  of: HintOf;
  /** The figure's name, for the button's own name. */
  name: string;
  /** What is true of this place only. */
  more?: string | undefined;
};

const GAP_PX = 6;
/** Long enough to cross the gap between the sign and its answer. */
const CROSSING_MS = 200;

/** A question mark that answers what a figure means, beside it and above everything: no table cuts it off. */
export function Hint({ of, name, more }: HintProps) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const bubble = useRef<HTMLSpanElement>(null);
  const { isOpen, hover, focus } = useOpen();

  useEffect(() => {
    if (!isOpen || !button.current || !bubble.current) return undefined;
    const shown = bubble.current;
    shown.showPopover();
    place(shown, button.current);
    return () => shown.hidePopover();
  }, [isOpen]);

  return (
    <span className="hint" onMouseEnter={() => hover(true)} onMouseLeave={() => hover(false)}>
      <button
        ref={button}
        type="button"
        className="hint__button"
        aria-label={`About ${name}`}
        aria-describedby={id}
        onFocus={() => focus(true)}
        onBlur={() => focus(false)}
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

type Opening = { isOpen: boolean; hover(isOver: boolean): void; focus(isIn: boolean): void };

/** Open as long as the pointer or the focus is on it, unless Escape is pressed, wherever that is. */
function useOpen(): Opening {
  const [isOpen, setOpen] = useState(false);
  const held = useRef({ pointer: false, focus: false });
  const leaving = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(leaving.current), []);
  useEffect(() => {
    if (!isOpen) return undefined;
    const dismiss = (event: KeyboardEvent) => {
      if (event.key === 'Escape') setOpen(false);
    };
    document.addEventListener('keydown', dismiss);
    return () => document.removeEventListener('keydown', dismiss);
  }, [isOpen]);

  const settle = () => {
    if (!held.current.pointer && !held.current.focus) setOpen(false);
  };
  return {
    isOpen,
    hover(isOver) {
      clearTimeout(leaving.current);
      held.current.pointer = isOver;
      if (isOver) setOpen(true);
      else leaving.current = setTimeout(settle, CROSSING_MS);
    },
    focus(isIn) {
      held.current.focus = isIn;
      if (isIn) setOpen(true);
      else settle();
    },
  };
}

/** At the right of the sign where there is room, else at its left, and always within the window. */
function place(bubble: HTMLElement, button: HTMLElement): void {
  const at = button.getBoundingClientRect();
  const size = bubble.getBoundingClientRect();
  const isRoomAtRight = at.right + GAP_PX + size.width < window.innerWidth;
  const left = isRoomAtRight ? at.right + GAP_PX : at.left - GAP_PX - size.width;
  const top = Math.min(at.top, window.innerHeight - size.height - GAP_PX);
  bubble.style.left = `${Math.max(GAP_PX, left)}px`;
  bubble.style.top = `${Math.max(GAP_PX, top)}px`;
}
