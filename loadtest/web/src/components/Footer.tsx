import { useFeed } from '../feed/useFeed';

/** What this is, exactly, and whose work is in it. */
export function Footer() {
  const version = useFeed((world) => world.hello?.version ?? null);
  return (
    <footer className="footer small">
      {version === null ? 'Kvlane' : `Kvlane ${version}`} · <a href="./licences.txt">Licences</a>
    </footer>
  );
}
