type Props = {
  x: number;
  y: number;
  count: number;
  /** So many from the left are in a cache. */
  cached?: number;
  size?: number;
};

/** A run of blocks, the first of them cached. */
export function Blocks({ x, y, count, cached = 0, size = 14 }: Props) {
  return (
    <g>
      {Array.from({ length: count }, (_, at) => (
        <rect
          key={at}
          className={at < cached ? 'block block-cached' : 'block'}
          x={x + at * (size + 4)}
          y={y}
          width={size}
          height={size}
          rx={2}
        />
      ))}
    </g>
  );
}
