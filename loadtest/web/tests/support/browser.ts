// A browser for a file of tests, and for each test a stub and a page to itself that is held to be quiet: no error, no
// breach of the content policy, no request to anybody else.

import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { chromium, type Browser, type BrowserContext, type Locator, type Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect } from 'vitest';

import { T0 } from './fixtures';
import { Stub } from './stub';

export const ARTEFACTS = fileURLToPath(new URL('../../artefacts/', import.meta.url));
export const LAPTOP = { width: 1280, height: 800 };
export const BOOTH = { width: 1920, height: 1080 };

const CHROMIUM = process.env.KVLANE_CHROMIUM ?? '/usr/bin/chromium';
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--js-flags=--expose-gc',
];

export type Opening = {
  /** The page's hash. */
  at?: string;
  size?: { width: number; height: number };
  scheme?: 'light' | 'dark';
  /** Time stands still, some seconds after `T0`, and goes on by `page.clock.runFor`. */
  clock?: boolean;
  /** What the stub is told before the page is opened. */
  before?: (stub: Stub) => void;
  /** Whether to wait until the page has heard a greeting. */
  greeted?: boolean;
  reducedMotion?: 'reduce' | 'no-preference';
  forcedColors?: 'active' | 'none';
};

export type Visit = {
  page: Page;
  context: BrowserContext;
  stub: Stub;
  /** Console errors like this one are expected: a browser speaks of each refused request. */
  allow(pattern: RegExp): void;
};

/** A socket that was cut, and an answer that is an error, are spoken of by the browser itself. */
export const SOCKET_LOST = /WebSocket connection to/;
export const REFUSED = /Failed to load resource/;

export async function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: CHROMIUM, headless: true, args: FLAGS });
}

export function useBrowser(): { open(opening?: Opening): Promise<Visit> } {
  let browser: Browser;
  let visits: { room: Room; allowed: RegExp[]; again: boolean }[] = [];
  /** Opening a page anew takes longer than most tests do in it, so the next one has it. */
  const spare: Room[] = [];

  beforeAll(async () => {
    browser = await launch();
  });
  afterAll(async () => {
    for (const { stub } of spare) await stub.stop();
    await browser.close();
  });
  afterEach(async ({ task }) => {
    const left = visits;
    visits = [];
    const failed = task.result?.state === 'fail';
    const heard: string[] = [];
    for (const [number, { room, allowed, again }] of left.entries()) {
      if (failed) await keepPicture(room.page, `failed-${task.name}-${number}`);
      if (again && !failed) await tidy(room);
      else await tearDown(room);
      if (again && !failed) spare.push(room);
      const said = room.complaints.splice(0);
      heard.push(...said.filter((complaint) => !allowed.some((pattern) => pattern.test(complaint))));
    }
    expect(heard, 'the page is quiet').toEqual([]);
  });

  return {
    async open(opening = {}) {
      // A clock that was stopped cannot be given back.
      const again = !opening.clock;
      const room = (again && spare.pop()) || (await build(browser));
      const { page, context, stub } = room;
      const allowed: RegExp[] = [];
      visits.push({ room, allowed, again });
      opening.before?.(stub);
      await page.setViewportSize(opening.size ?? LAPTOP);
      await page.emulateMedia({
        colorScheme: opening.scheme ?? 'light',
        reducedMotion: opening.reducedMotion ?? 'no-preference',
        forcedColors: opening.forcedColors ?? 'none',
      });
      if (opening.clock) {
        await countAsks(page);
        await page.clock.install({ time: T0 * 1000 });
      }
      await page.goto(stub.url + (opening.at ?? '#/'));
      if (opening.greeted ?? true) await page.locator('[data-connection=open]').waitFor();
      if (opening.clock) {
        // A moment ahead of the page's own time: far enough to be still to come, too near for timers of ours to fire.
        const now = await page.evaluate(() => Date.now());
        await page.clock.pauseAt(now + 2000);
      }
      return { page, context, stub, allow: (pattern) => allowed.push(pattern) };
    },
  };
}

/** A page and the server it is of. */
type Room = { context: BrowserContext; page: Page; stub: Stub; complaints: string[] };

async function build(browser: Browser): Promise<Room> {
  const stub = await Stub.start();
  const context = await browser.newContext({ timezoneId: 'UTC', locale: 'en-US' });
  const page = await context.newPage();
  page.setDefaultTimeout(10_000);
  const complaints: string[] = [];
  await listen(page, stub.url, complaints);
  return { context, page, stub, complaints };
}

/** Leaves nothing of a test to the next one. */
async function tidy({ context, page, stub }: Room): Promise<void> {
  for (const other of context.pages()) if (other !== page) await other.close();
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await context.unrouteAll({ behavior: 'ignoreErrors' });
  await page.evaluate(() => window.localStorage.clear());
  await page.mouse.move(0, 0);
  await page.goto('about:blank');
  stub.reset();
}

async function tearDown({ context, stub }: Room): Promise<void> {
  await context.close();
  await stub.stop();
}

/** Hears whatever a page of this address should not do. */
export async function listen(page: Page, address: string, complaints: string[]): Promise<void> {
  page.on('pageerror', (error) => complaints.push(`error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() === 'error') complaints.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    const own =
      url.protocol === 'data:' || url.protocol === 'blob:' || url.origin === new URL(address).origin;
    if (!own) complaints.push(`request to ${request.url()}`);
  });
  await page.exposeFunction('breach', (what: string) => complaints.push(`content policy: ${what}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => {
      (window as unknown as { breach(what: string): void }).breach(
        `${event.violatedDirective} ${event.blockedURI}`,
      );
    });
  });
}

type Counting = Window & { asksUnderWay: number };

/** Counts what the page has asked and not read the answer of: with a clock that stands still there is no other way to wait. */
async function countAsks(page: Page): Promise<void> {
  await page.addInitScript(() => {
    const counting = window as unknown as Counting;
    counting.asksUnderWay = 0;
    const over = () => {
      counting.asksUnderWay -= 1;
    };
    const { fetch } = window;
    const { json } = Response.prototype;
    window.fetch = (...asked) => {
      counting.asksUnderWay += 1;
      const answer = fetch(...asked);
      answer.catch(over);
      return answer;
    };
    Response.prototype.json = function read() {
      return json.call(this).finally(over) as Promise<unknown>;
    };
  });
}

export async function asksUnderWay(page: Page): Promise<number> {
  return page.evaluate(() => (window as unknown as Counting).asksUnderWay);
}

/** Lets what was said reach the page while its clock stands still. */
export async function settle(page: Page): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 60));
  await page.clock.runFor(50);
}

export async function keepPicture(page: Page, name: string): Promise<void> {
  mkdirSync(ARTEFACTS, { recursive: true });
  const file = `${name.replaceAll(/[^a-z0-9]+/gi, '-').toLowerCase()}.png`;
  await page.screenshot({ path: join(ARTEFACTS, file), fullPage: true });
}

export async function colourOf(
  locator: Locator,
  property: 'color' | 'backgroundColor' = 'color',
): Promise<string> {
  return locator.evaluate((element, name) => getComputedStyle(element)[name], property);
}

export async function boxOf(
  locator: Locator,
): Promise<{ x: number; y: number; width: number; height: number }> {
  const box = await locator.boundingBox();
  if (!box) throw new Error('nothing is seen');
  return box;
}

/** By how many pixels the page is wider than its window, once it has had the time to follow it. */
export async function overhang(page: Page): Promise<number> {
  const measured = () =>
    page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  let wider = await measured();
  for (let look = 0; wider > 0 && look < 20; look += 1) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    wider = await measured();
  }
  return wider;
}
