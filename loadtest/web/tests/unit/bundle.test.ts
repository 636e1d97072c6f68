import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';

import { describe, expect, test } from 'vitest';

const WEB = fileURLToPath(new URL('../../', import.meta.url));
const PAGE = fileURLToPath(new URL('../../../page/', import.meta.url));

const files = readdirSync(PAGE, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name !== '.gitignore')
  .map((entry) => join(entry.parentPath, entry.name));
const plain = files.filter((file) => !file.endsWith('.gz'));

describe('the bundle', () => {
  test('is built, with a packed form of every file', () => {
    expect(existsSync(join(PAGE, 'index.html')), 'npm run build comes first').toBe(true);
    for (const file of plain) {
      expect(gunzipSync(readFileSync(`${file}.gz`)).equals(readFileSync(file)), relative(PAGE, file)).toBe(
        true,
      );
    }
  });

  test('is 250 KiB or less, gzipped', () => {
    const bytes = plain.reduce((sum, file) => sum + statSync(`${file}.gz`).size, 0);
    process.stdout.write(`bundle ${(bytes / 1024).toFixed(1)} KiB gzipped\n`);
    expect(bytes).toBeGreaterThan(50 * 1024);
    expect(bytes).toBeLessThanOrEqual(250 * 1024);
  });

  test('S-188: names no other address than namespaces and the explanation of React’s errors', () => {
    const named = plain.flatMap(
      (file) => readFileSync(file, 'utf8').match(/(?:https?:)?\/\/[\w-]+(?:\.[\w-]+)+/g) ?? [],
    );
    expect([...new Set(named)].sort()).toEqual(['http://www.w3.org', 'https://react.dev']);
  });

  test('S-144: has no vendor’s name', () => {
    for (const file of plain) {
      expect(readFileSync(file, 'utf8'), relative(PAGE, file)).not.toMatch(/nvidia|dynamo|digitalocean/i);
    }
  });

  test('says whose work it contains', () => {
    const licences = readFileSync(join(PAGE, 'licences.txt'), 'utf8');
    const { dependencies } = JSON.parse(readFileSync(join(WEB, 'package.json'), 'utf8')) as {
      dependencies: Record<string, string>;
    };
    for (const name of Object.keys(dependencies)) expect(licences.toLowerCase()).toContain(name);
  });
});

describe('packages', () => {
  test('are of one version each, wherever they are fetched from', () => {
    const lock = readFileSync(join(WEB, 'package-lock.json'), 'utf8');
    expect(lock).not.toContain('"resolved"');
    const named = JSON.parse(readFileSync(join(WEB, 'package.json'), 'utf8')) as Record<
      string,
      Record<string, string>
    >;
    const versions = Object.values({ ...named.dependencies, ...named.devDependencies });
    expect(versions.filter((version) => !/^\d+\.\d+\.\d+$/.test(version))).toEqual([]);
  });
});
