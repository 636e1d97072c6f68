import { useId, type CSSProperties, type ReactNode } from 'react';

type Props = {
  title: string;
  description: string;
  width: number;
  height: number;
  /** Empty at the left and right, so that edges meet those of the text around. */
  trim?: number;
  children: ReactNode;
};

/** A picture that says what it shows: who cannot see it gets its title and its description. */
export function Drawing({ title, description, width, height, trim = 0, children }: Props) {
  const id = useId();
  const ratio = { '--ratio': (width - 2 * trim) / height } as CSSProperties;
  return (
    <svg
      role="img"
      className="drawing"
      style={ratio}
      viewBox={`${trim} 0 ${width - 2 * trim} ${height}`}
      aria-labelledby={`${id}title`}
      aria-describedby={`${id}desc`}
    >
      <title id={`${id}title`}>{title}</title>
      <desc id={`${id}desc`}>{description}</desc>
      {children}
    </svg>
  );
}
