import { ms } from '../format';
import type { Turn } from '../wire';

/** Time to first token, turn by turn: where caches are warm it falls after the first. */
export function TtftByTurn({ turns }: { turns: readonly Turn[] }) {
  const longest = Math.max(...turns.map((turn) => turn.ttft_ms ?? 0), 0);
  return (
    <ol className="ttft-by-turn" aria-label="Time to first token by turn">
      {turns.map(({ turn, ttft_ms }) => (
        <li key={turn}>
          <span className="ttft-by-turn__turn">Turn {turn}</span>
          <span className="ttft-by-turn__track">
            <span
              className="ttft-by-turn__bar"
              data-testid="ttft-bar"
              style={{ width: `${longest > 0 ? ((ttft_ms ?? 0) / longest) * 100 : 0}%` }}
            />
          </span>
          <span className="ttft-by-turn__ms">{ms(ttft_ms)}</span>
        </li>
      ))}
    </ol>
  );
}
