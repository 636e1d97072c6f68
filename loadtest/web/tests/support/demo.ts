// The whole of it, as `make demo` starts it: three simulated engines, a router, a load and the page.

import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createServer, type AddressInfo, type Server } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Where cargo puts the programs. */
const PROGRAMS =
  process.env.KVLANE_BIN ?? fileURLToPath(new URL('../../../../target/debug/', import.meta.url));
const PATIENCE_MS = 60_000;
/** Engines have three ports each, some way apart: those cannot be asked for one by one. */
const WORKER_PORT = 18_411;

export class Demo {
  private constructor(
    private readonly child: ChildProcess,
    readonly page: string,
    readonly admin: string,
    readonly said: string[],
  ) {}

  static async start(flags: readonly string[]): Promise<Demo> {
    const program = join(PROGRAMS, 'kvlane-load');
    if (!existsSync(program))
      throw new Error(`${program} is not there, expected cargo build --workspace --bins`);
    const [port, admin, page] = await freePorts(3);
    const ports = {
      '--port': port,
      '--admin-port': admin,
      '--page-port': page,
      '--worker-port': WORKER_PORT,
    };
    const given = Object.entries(ports).flatMap(([name, value]) => [name, String(value)]);
    const child = spawn(program, ['demo', ...given, ...flags], { stdio: ['ignore', 'pipe', 'pipe'] });
    const said: string[] = [];
    await new Promise<void>((opened, failed) => {
      const late = setTimeout(() => failed(new Error(`no page yet: ${said.join('\n')}`)), PATIENCE_MS);
      for (const stream of [child.stdout, child.stderr]) {
        createInterface({ input: stream }).on('line', (line) => {
          said.push(line);
          if (!line.startsWith('Open:')) return;
          clearTimeout(late);
          opened();
        });
      }
      child.on('exit', (code) => failed(new Error(`the demo ended with ${code}: ${said.join('\n')}`)));
    });
    return new Demo(child, `http://127.0.0.1:${page}/`, `http://127.0.0.1:${admin}/`, said);
  }

  /** Ends it as a terminal would; back when it has ended. */
  async stop(): Promise<number | null> {
    if (this.child.exitCode !== null) return this.child.exitCode;
    const ended = new Promise<number | null>((over) => this.child.once('exit', over));
    this.child.kill('SIGINT');
    return ended;
  }
}

/** All held at once, or two might be one. */
async function freePorts(count: number): Promise<number[]> {
  const held = await Promise.all(
    Array.from({ length: count }, async () => {
      const server = createServer();
      await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
      return server;
    }),
  );
  const ports = held.map((server) => (server.address() as AddressInfo).port);
  await Promise.all(held.map((server: Server) => new Promise((closed) => server.close(closed))));
  return ports;
}
