import { useFeed } from '../feed/useFeed';
import { SUBTITLE, TITLE } from '../words';
import { ConnectionLight } from './ConnectionLight';
import { RunControls } from './RunControls';
import { ThemeSwitch } from './ThemeSwitch';

/** The same on every page: what this is, whether it lives, and the two buttons. */
export function Header() {
  const title = useFeed((world) => world.hello?.brand.title ?? TITLE);
  const subtitle = useFeed((world) => world.hello?.brand.subtitle ?? SUBTITLE);
  return (
    <header className="header">
      <div className="header__brand">
        <h1>{title}</h1>
        <p data-testid="subtitle">{subtitle}</p>
      </div>
      <div className="header__tools">
        <ConnectionLight />
        <ThemeSwitch />
        <RunControls />
      </div>
    </header>
  );
}
