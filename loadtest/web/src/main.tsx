import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';

import { App } from './App';
import { startFeed } from './feed/feed';
import './styles/tokens.css';
import './styles/scale.css';
import './styles/base.css';
import './styles/layout.css';
import './styles/parts.css';
import './styles/dashboard.css';

startFeed();
const root = document.getElementById('root');
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
