// A server that says what a test tells it to: the built page with the headers it has in production, scripted answers,
// and a feed that can be cut.

import { existsSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

import * as fixtures from './fixtures';
import { ServerSocket } from './websocket';

/** Where the built page lies: as the build leaves it, or where somebody else's build is. */
export const PAGE = process.env.KVLANE_PAGE_DIR
  ? join(process.env.KVLANE_PAGE_DIR, '/')
  : fileURLToPath(new URL('../../../page/', import.meta.url));

const CSP =
  "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; connect-src 'self'; " +
  "frame-ancestors 'self'; base-uri 'none'; object-src 'none'";

const KINDS: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
};

/** What a route answers: a JSON value, or one with its status; or it never does. */
export type Answer = { status?: number; json: unknown; headers?: Record<string, string> } | 'never';
export type Asked = { at: number; query: string; body: unknown; text: string };

export class Stub {
  /** The first thing a new socket hears. */
  hello: object = fixtures.hello();
  /** How many sockets were opened in all. */
  greeted = 0;
  private readonly answers = new Map<string, (asked: Asked) => Answer>();
  private readonly log = new Map<string, Asked[]>();
  private readonly open = new Set<ServerSocket>();
  private refuses = false;
  private mute = false;

  private constructor(private readonly server: Server) {}

  static async start(): Promise<Stub> {
    if (!existsSync(join(PAGE, 'index.html'))) throw new Error('the page is not built: npm run build');
    const server = createServer();
    const stub = new Stub(server);
    server.on('request', (request, response) => void stub.serve(request, response));
    server.on('upgrade', (request, stream) => {
      if (stub.refuses || request.url !== '/api/feed') {
        stream.end('HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n');
        return;
      }
      const socket = ServerSocket.accept(request, stream);
      stub.open.add(socket);
      stub.greeted += 1;
      socket.onClose(() => stub.open.delete(socket));
      if (!stub.mute) void socket.say(JSON.stringify(stub.hello));
    });
    stub.reset();
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return stub;
  }

  /** As it is when it was just started. */
  reset(): void {
    this.kill();
    this.hello = fixtures.hello();
    this.greeted = 0;
    this.refuses = false;
    this.mute = false;
    this.log.clear();
    this.answers.clear();
    this.answer('GET /api/baselines', fixtures.baselines());
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/`;
  }

  get sockets(): number {
    return this.open.size;
  }

  /** `GET /api/tree` answers this from now on, with status 200. */
  answer(route: string, json: unknown): void {
    this.answers.set(route, () => ({ json }));
  }

  /** The server's own sentence. */
  fail(route: string, status: number, message: string): void {
    this.answers.set(route, () => ({ status, json: { error: { message } } }));
  }

  answerBy(route: string, by: (asked: Asked) => Answer): void {
    this.answers.set(route, by);
  }

  /** Everything that was asked of a route, oldest first. */
  asked(route: string): readonly Asked[] {
    return this.log.get(route) ?? [];
  }

  async say(message: object): Promise<void> {
    const text = JSON.stringify(message);
    await Promise.all([...this.open].map((socket) => socket.say(text)));
  }

  /** Pulls the cable of every socket that is open. */
  kill(): void {
    for (const socket of this.open) socket.destroy();
  }

  /** Whether new sockets are turned away. */
  refuse(refuses: boolean): void {
    this.refuses = refuses;
  }

  /** New sockets are taken and hear nothing. */
  silent(mute: boolean): void {
    this.mute = mute;
  }

  closeSockets(code: number): void {
    for (const socket of this.open) socket.close(code);
  }

  async stop(): Promise<void> {
    this.kill();
    this.server.closeAllConnections();
    await new Promise<void>((resolve) => this.server.close(() => resolve()));
  }

  private async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://stub');
    if (!url.pathname.startsWith('/api/')) return this.file(url.pathname, response);
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    const asked: Asked = { at: Date.now(), query: url.search, body: parsed(text), text };
    const route = `${request.method} ${url.pathname}`;
    this.log.set(route, [...this.asked(route), asked]);
    const known = this.answers.get(route);
    const unknown: Answer = { status: 404, json: { error: { message: `nothing is at ${route}` } } };
    const answer = known ? known(asked) : request.method === 'GET' ? unknown : { json: {} };
    if (answer === 'never') return;
    response.writeHead(answer.status ?? 200, { 'Content-Type': 'application/json', ...answer.headers });
    response.end(JSON.stringify(answer.json));
  }

  private file(pathname: string, response: ServerResponse): void {
    const path = join(PAGE, normalize(pathname === '/' ? '/index.html' : pathname));
    if (!path.startsWith(PAGE) || !existsSync(path)) {
      response.writeHead(404);
      response.end();
      return;
    }
    const kind = extname(path);
    const headers: Record<string, string> = {
      'Content-Type': KINDS[kind] ?? 'application/octet-stream',
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'no-referrer',
      'Cache-Control': pathname.startsWith('/assets/') ? 'public, max-age=31536000, immutable' : 'no-cache',
    };
    if (kind === '.html') headers['Content-Security-Policy'] = CSP;
    response.writeHead(200, headers);
    response.end(readFileSync(path));
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
