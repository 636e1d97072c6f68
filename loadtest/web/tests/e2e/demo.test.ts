// The page over the real thing: engines that compute prompts at a GPU's pace, the router, the load, in one browser.

import { readFileSync } from 'node:fs';

import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { BOOTH, keepPicture, launch, listen, SOCKET_LOST } from '../support/browser';
import { Demo } from '../support/demo';

/** Conversations that are read, and the share of them that must get faster after their first turn. */
const READ = 20;
const MOST = 0.5;
/** So many documents that hardly two conversations are about the same: a first prompt is new to every engine. */
const FLAGS = ['--speed', '4', '--concurrency', '12', '--documents', '400'];

describe.sequential('the demo', () => {
  let demo: Demo;
  let browser: Browser;
  let page: Page;
  const complaints: string[] = [];

  beforeAll(async () => {
    demo = await Demo.start(FLAGS);
    browser = await launch();
    page = await browser.newPage({ viewport: BOOTH });
    page.setDefaultTimeout(20_000);
    await listen(page, demo.page, complaints);
    await page.goto(demo.page);
  });
  afterAll(async () => {
    await browser?.close();
    await demo?.stop();
  });

  const go = (hash: string) => page.goto(demo.page + hash);
  // The radio lies under its own words.
  const routing = (name: string) => page.getByRole('radio', { name }).click({ force: true });
  const runs = (words: string) => page.getByTestId('connection').filter({ hasText: words }).waitFor();
  const kpi = (label: string) =>
    page.getByRole('group', { name: new RegExp(`^${label}: `) }).getByTestId('kpi-value');

  test('figures come in', async () => {
    await page.locator('[data-connection=open]').waitFor();
    await runs('load running');
    for (const label of ['RPS', 'Requests', 'TOPS', 'KV Cache Hit', 'Queued']) {
      await expect.poll(() => kpi(label).textContent(), { timeout: 60_000 }).not.toBe('—');
    }
    expect(await page.getByTestId('worker').count()).toBe(3);
    expect(await page.getByTestId('hardware').textContent()).toContain('H200 (simulated)');
    expect(await page.getByTestId('note').textContent()).toContain('simulated engines');
  });

  test('the first token comes sooner once a conversation has a warm cache', async () => {
    await go('#/conversations');
    const whole = page.getByTestId('conversation').filter({ hasText: 'completed' });
    await expect.poll(() => whole.count(), { timeout: 150_000 }).toBeGreaterThanOrEqual(READ);
    const links = await whole.locator('a').evaluateAll((all) => all.map((link) => link.getAttribute('href')));
    const fell: boolean[] = [];
    for (const link of links.slice(0, READ)) {
      await go(link ?? '');
      const turns = page.getByTestId('turn');
      await turns.nth(1).waitFor();
      const [first, ...later] = (await page.locator('.ttft-by-turn__ms').allTextContents()).map(
        Number.parseFloat,
      );
      fell.push(first !== undefined && median(later) < first);
      // Who answered, how much of the prompt was there already, and why there.
      const second = turns.nth(1);
      expect(await second.getByRole('meter', { name: 'Cached share of the prompt' }).count()).toBe(1);
      await second.getByText('Why this worker', { exact: true }).first().click();
      await expect.poll(() => second.getByTestId('candidate').count()).toBe(3);
      const chosen = second.locator('[data-testid=candidate][data-chosen=true]');
      const worker = await second.locator('dd').last().getAttribute('title');
      expect(await chosen.textContent()).toContain(worker);
    }
    const share = fell.filter(Boolean).length / fell.length;
    process.stdout.write(
      `turn 2+ below turn 1 in ${Math.round(share * 100)} % of ${fell.length} conversations\n`,
    );
    expect(share).toBeGreaterThan(MOST);
    await keepPicture(page, 'e2e-conversation');
  });

  test('what is cached where is seen, and a prompt goes where its beginning is', async () => {
    await go('#/kv-routing');
    await expect.poll(() => page.getByTestId('tree-node').count()).toBeGreaterThan(3);
    await keepPicture(page, 'e2e-kv-routing');
    const listing = await (await fetch(`${demo.page}api/conversations?limit=1`)).json();
    const { turns } = await (
      await fetch(`${demo.page}api/conversations/${listing.conversations[0].id}`)
    ).json();
    await page.getByRole('textbox', { name: 'Prompt' }).fill(turns[0].user.split(' […] ')[0]);
    await page.getByRole('button', { name: 'Explain' }).click();
    const explained = page.getByTestId('explained');
    await explained.waitFor();
    expect(await explained.getByRole('status').textContent()).toMatch(/holds [1-9]\d* of \d+ blocks/);
  });

  test('round-robin forgets what was warm, KV-aware routing finds it again', async () => {
    await go('#/');
    const hit = async () => Number.parseFloat((await kpi('KV Cache Hit').textContent()) ?? '');
    const before = await hit();
    expect(before).toBeGreaterThan(30);
    await routing('Round-robin');
    await expect.poll(async () => (await mode(demo)).mode).toBe('round_robin');
    await expect.poll(() => page.getByTestId('chart-TTFT').getAttribute('data-marks')).not.toBe('0');
    await expect.poll(hit, { timeout: 90_000, interval: 1000 }).toBeLessThan(before - 10);
    await keepPicture(page, 'e2e-dashboard');
    await routing('KV-aware');
    await expect.poll(async () => (await mode(demo)).mode).toBe('kv');
  });

  test('the slider changes the load, Stop and Start end and begin it', async () => {
    const slider = page.getByRole('slider');
    await slider.focus();
    await slider.press('ArrowRight');
    await expect.poll(async () => (await status(demo)).level).toEqual({ concurrency: 13 });
    await page.getByRole('button', { name: 'Stop', exact: true }).click();
    await runs('load stopped');
    await expect.poll(() => kpi('Requests').textContent()).toBe('—');
    const start = page.getByRole('button', { name: 'Start', exact: true });
    await expect.poll(() => start.isEnabled()).toBe(true);
    await start.click();
    await runs('load running');
    await expect.poll(() => kpi('Requests').textContent(), { timeout: 60_000 }).toMatch(/^\d{1,2}$/);
    await page.getByRole('button', { name: 'Stop', exact: true }).click();
    await runs('load stopped');
  });

  test('a sweep in virtual time is begun, seen and taken home', async () => {
    await go('#/sweeps');
    await page.getByLabel('Levels, conversations at a time').fill('60, 80');
    await page.getByRole('button', { name: 'Start sweep' }).click();
    await page.getByRole('link', { name: 'Report with plots' }).waitFor();
    await expect.poll(() => page.getByTestId('cell').count(), { timeout: 120_000 }).toBeGreaterThan(0);
    await page.getByText('done', { exact: true }).first().waitFor({ timeout: 120_000 });
    await keepPicture(page, 'e2e-sweep');
    const downloading = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Report with plots' }).click();
    const file = await (await downloading).path();
    expect(readFileSync(file, 'utf8')).toContain('<svg');
  });

  test('when everything ends, the page says so', async () => {
    expect(complaints, 'the page was quiet until now').toEqual([]);
    expect(await demo.stop()).toBe(0);
    await runs('Disconnected');
    for (const name of ['Start', 'Stop']) {
      expect(await page.getByRole('button', { name, exact: true }).isDisabled()).toBe(true);
    }
    expect(
      complaints.filter((complaint) => !SOCKET_LOST.test(complaint) && !/Failed to load/.test(complaint)),
    ).toEqual([]);
  });
});

async function mode(demo: Demo): Promise<{ mode: string }> {
  return (await fetch(`${demo.admin}admin/mode`)).json();
}

async function status(demo: Demo): Promise<{ level: unknown }> {
  return (await fetch(`${demo.page}api/status`)).json();
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}
