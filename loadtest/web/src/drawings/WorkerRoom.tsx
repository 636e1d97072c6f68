import { Blocks } from './Blocks';
import { Box } from './Box';

type Props = { x: number; y: number; width: number; height: number; workers: number | null };

const MOST_DRAWN = 3;
const BOX_HEIGHT = 90;
const BOX_STEP = 110;
/** Blocks drawn as cached in each box: three engines never hold the same. */
const CACHED = [6, 4, 7] as const;
const PLACES = 9;

/** The engines, at most three of them drawn; the last one drawn stands for the last one there is. */
export function WorkerRoom({ x, y, width, height, workers }: Props) {
  const drawn = Math.min(workers ?? MOST_DRAWN, MOST_DRAWN);
  const left = x + 16;
  return (
    <Box at={[x, y, width, height]} kind="room" title={workers === null ? 'Workers' : `Workers × ${workers}`}>
      {Array.from({ length: drawn }, (_, at) => {
        const top = y + 48 + at * BOX_STEP;
        const number = at === drawn - 1 && workers !== null ? workers : at + 1;
        return (
          <Box
            key={at}
            at={[left, top, width - 32, BOX_HEIGHT]}
            title={`Worker ${number}`}
            lines={['engine, KV cache']}
          >
            <Blocks x={left + 14} y={top + 62} count={PLACES} cached={CACHED[at] ?? 0} />
          </Box>
        );
      })}
      {workers !== null && workers > MOST_DRAWN && (
        <text className="arrow-label" x={x + width / 2} y={y + 48 + 2 * BOX_STEP - 6}>
          …
        </text>
      )}
    </Box>
  );
}
