import type { ReactNode } from 'react';

export type BadgeTone = 'good' | 'warn' | 'bad' | 'idle' | 'accent';

type BadgeProps = { tone: BadgeTone; title?: string | undefined; children: ReactNode };

/** A word with a colour. */
export function Badge({ tone, title, children }: BadgeProps) {
  return (
    <span className="badge" data-tone={tone} title={title}>
      {children}
    </span>
  );
}
