import type { MouseEvent } from 'react';

/** Past header and navigation. The address is left alone: its hash names the page. */
export function Skip() {
  const skip = (event: MouseEvent) => {
    event.preventDefault();
    document.getElementById('main')?.focus();
  };
  return (
    <a className="skip" href="#main" onClick={skip}>
      Skip to content
    </a>
  );
}
