import { Component, type ReactNode } from 'react';

type Props = { children: ReactNode };

/** A page that fails, or whose code cannot be fetched, does not take the rest of the screen with it. */
export class Fence extends Component<Props, { failed: boolean }> {
  override state = { failed: false };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  override render() {
    if (!this.state.failed) return this.props.children;
    // From the beginning: a browser may remember that the code could not be had.
    return (
      <p role="alert" className="fence notice" data-tone="bad">
        This page could not be loaded.{' '}
        <button type="button" className="button button--small" onClick={() => window.location.reload()}>
          Load again
        </button>
      </p>
    );
  }
}
