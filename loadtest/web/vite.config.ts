import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// `npm run dev` shows the page of these sources with the data of a running demo.
const demo = process.env.KVLANE_PAGE ?? 'http://127.0.0.1:3000';

export default defineConfig({
  plugins: [react()],
  // Relative addresses: the page also works below a path prefix.
  base: './',
  build: {
    outDir: '../page',
    // scripts/pack.mjs empties it: the directory's own .gitignore has to stay.
    emptyOutDir: false,
    assetsInlineLimit: 0,
    target: 'es2022',
    // light-dark() is kept as it is written: one definition of each colour.
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    sourcemap: false,
    modulePreload: { polyfill: false },
  },
  server: {
    proxy: { '/api': { target: demo, ws: true } },
  },
});
