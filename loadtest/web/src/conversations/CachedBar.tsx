import { Meter } from '../components/Meter';
import { count, percent } from '../format';

type Props = { cached: number | null; prompt: number | null };

/** How much of a prompt was in the worker's cache, as the engine told the client. */
export function CachedBar({ cached, prompt }: Props) {
  if (cached === null || prompt === null || prompt <= 0) {
    return <p className="cached-bar quiet">Cached share not reported</p>;
  }
  const share = Math.min((cached / prompt) * 100, 100);
  const words = `${count(cached)} of ${count(prompt)} prompt tokens`;
  return (
    <div className="cached-bar">
      <Meter
        label="Cached share of the prompt"
        value={share}
        words={`${percent(share, 0)}, ${words}`}
        level="green"
      />
      <span>
        <strong>{percent(share, 0)} cached</strong> {words}
      </span>
    </div>
  );
}
