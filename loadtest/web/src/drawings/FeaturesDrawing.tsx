import { Drawing } from './Drawing';
import { FEATURES } from './features';

/** What the router does, a picture and two sentences each. */
export function FeaturesDrawing() {
  return (
    <ul className="features" data-testid="features">
      {FEATURES.map(({ name, about, shows, Figure }) => (
        <li key={name} className="feature">
          <Drawing title={name} description={shows} width={260} height={120}>
            <Figure />
          </Drawing>
          <h3>{name}</h3>
          <p>{about}</p>
        </li>
      ))}
    </ul>
  );
}
