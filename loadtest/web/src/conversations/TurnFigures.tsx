import { Hint } from '../components/Hint';
import { count, DASH, ms, seconds } from '../format';
import { shortName } from '../names';
import type { Turn } from '../wire';

/** What one turn took, as its client saw it, and who answered. */
export function TurnFigures({ turn }: { turn: Turn }) {
  return (
    <dl className="turn-figures">
      <div>
        <dt>
          TTFT <Hint of="ttft" name="TTFT" />
        </dt>
        <dd>{ms(turn.ttft_ms)}</dd>
      </div>
      <div>
        <dt>
          ITL <Hint of="itl" name="ITL" />
        </dt>
        <dd>{ms(turn.itl_ms, 1)}</dd>
      </div>
      <div>
        <dt>Tokens</dt>
        <dd>{count(turn.output_tokens)}</dd>
      </div>
      <div>
        <dt>
          Latency <Hint of="latency" name="Latency" />
        </dt>
        <dd>{seconds(turn.latency_s)}</dd>
      </div>
      <div>
        <dt>Worker</dt>
        <dd title={turn.worker ?? undefined}>{turn.worker === null ? DASH : shortName(turn.worker)}</dd>
      </div>
    </dl>
  );
}
