import type { Shape } from './looks';

type Props = { shape: Shape; x: number; y: number; size?: number };

/** A point of a curve. */
export function Marker({ shape, x, y, size = 6 }: Props) {
  switch (shape) {
    case 'circle':
      return <circle cx={x} cy={y} r={size} />;
    case 'square':
      return <rect x={x - size * 0.9} y={y - size * 0.9} width={size * 1.8} height={size * 1.8} />;
    case 'diamond':
      return (
        <polygon
          points={`${x},${y - size * 1.3} ${x + size * 1.3},${y} ${x},${y + size * 1.3} ${x - size * 1.3},${y}`}
        />
      );
    case 'triangle':
      return (
        <polygon
          points={`${x},${y - size * 1.2} ${x + size * 1.2},${y + size} ${x - size * 1.2},${y + size}`}
        />
      );
  }
}
