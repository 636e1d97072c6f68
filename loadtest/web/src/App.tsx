import { lazy, Suspense, useEffect, useRef, type ReactNode } from 'react';

import { ErrorBar } from './components/ErrorBar';
import { Fence } from './components/Fence';
import { Footer } from './components/Footer';
import { Header } from './components/Header';
import { Navigation } from './components/Navigation';
import { Skip } from './components/Skip';
import { useFeed } from './feed/useFeed';
import { Dashboard } from './pages/Dashboard';
import { href, tabOf, useRoute, type Route } from './routes';
import { TABS, TITLE } from './words';

// The first page is there at once; the others come when they are asked for.
const Conversations = lazy(() => import('./pages/Conversations'));
const Conversation = lazy(() => import('./pages/Conversation'));
const Architecture = lazy(() => import('./pages/Architecture'));
const KvRouting = lazy(() => import('./pages/KvRouting'));
const Features = lazy(() => import('./pages/Features'));
const Sweeps = lazy(() => import('./pages/Sweeps'));
const Sweep = lazy(() => import('./pages/Sweep'));

function pageOf(route: Route): ReactNode {
  switch (route.page) {
    case 'dashboard':
      return <Dashboard />;
    case 'conversations':
      return <Conversations />;
    case 'conversation':
      return <Conversation id={route.id} />;
    case 'architecture':
      return <Architecture />;
    case 'kv-routing':
      return <KvRouting />;
    case 'features':
      return <Features />;
    case 'sweeps':
      return <Sweeps />;
    case 'sweep':
      return <Sweep id={route.id} />;
  }
}

export function App() {
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  useTitle(route);
  useFocusOn(href(route), main);
  return (
    <>
      <Received />
      <Skip />
      <Header />
      <Navigation />
      <ErrorBar />
      <main id="main" ref={main} tabIndex={-1} key={href(route)} data-page={route.page}>
        <Fence>
          <Suspense fallback={<p className="loading">Loading…</p>}>{pageOf(route)}</Suspense>
        </Fence>
      </main>
      <Footer />
    </>
  );
}

/** The brand's title; on every other page than the first, that page's name before it. */
function useTitle(route: Route): void {
  const title = useFeed((world) => world.hello?.brand.title ?? TITLE);
  const tab = tabOf(route);
  useEffect(() => {
    const label = TABS.find((known) => known.tab === tab)?.label;
    document.title = tab === 'dashboard' ? title : `${label} · ${title}`;
  }, [title, tab]);
}

/** Who follows a link with a keyboard or a reader goes on in the page it leads to. */
function useFocusOn(address: string, main: { current: HTMLElement | null }): void {
  const before = useRef(address);
  useEffect(() => {
    if (before.current === address) return;
    before.current = address;
    main.current?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [address, main]);
}

/**
 * How many frames came, and how many of them made no sense, where a test or a curious person can read it. By itself,
 * because it changes with each of them.
 */
function Received() {
  const received = useFeed((world) => world.received);
  const refused = useFeed((world) => world.refused);
  useEffect(() => {
    document.documentElement.dataset.received = String(received);
    document.documentElement.dataset.refused = String(refused);
  }, [received, refused]);
  return null;
}
