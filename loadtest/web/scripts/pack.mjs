// Between Vite and the binary: empties the bundle's directory, or packs what was built and holds it to its size.
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { extname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const page = fileURLToPath(new URL('../../page/', import.meta.url));
const MOST_GZIPPED = 250 * 1024;
const TEXTS = new Set(['.html', '.js', '.css', '.svg', '.json', '.txt']);

if (process.argv[2] === 'clean') {
  for (const name of readdirSync(page)) {
    if (name !== '.gitignore') rmSync(join(page, name), { recursive: true });
  }
} else {
  pack();
}

function pack() {
  const files = readdirSync(page, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name !== '.gitignore' && !entry.name.endsWith('.gz'))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
  let raw = 0;
  let packed = 0;
  for (const file of files) {
    const bytes = readFileSync(file);
    const gzipped = TEXTS.has(extname(file)) ? gzipSync(bytes, { level: 9 }) : null;
    if (gzipped) writeFileSync(`${file}.gz`, gzipped);
    raw += bytes.length;
    packed += (gzipped ?? bytes).length;
    report(relative(page, file), bytes.length, (gzipped ?? bytes).length);
  }
  report('all', raw, packed);
  if (packed > MOST_GZIPPED) {
    process.stderr.write(`the page is ${packed} bytes gzipped, expected ${MOST_GZIPPED} or fewer\n`);
    process.exitCode = 1;
  }
}

function report(name, raw, packed) {
  const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`.padStart(11);
  process.stdout.write(`${name.padEnd(44)}${kib(raw)}${kib(packed)} gz\n`);
}
