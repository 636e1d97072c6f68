import { useId, type ReactNode } from 'react';

type CardProps = {
  title: ReactNode;
  /** At the right of the title. */
  aside?: ReactNode;
  heading?: 2 | 3;
  className?: string;
  children: ReactNode;
};

/** A section with its heading. */
export function Card({ title, aside, heading = 2, className = '', children }: CardProps) {
  const id = useId();
  const Heading = heading === 2 ? 'h2' : 'h3';
  return (
    <section className={`card ${className}`} aria-labelledby={id}>
      <div className="card__head">
        <Heading id={id}>{title}</Heading>
        {aside !== undefined && <div className="card__aside">{aside}</div>}
      </div>
      {children}
    </section>
  );
}
