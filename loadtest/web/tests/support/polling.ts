import type { Page } from 'playwright-core';
import { expect } from 'vitest';

import { asksUnderWay } from './browser';
import type { Stub } from './stub';

/** Lets so much pass by the page's clock, and by ours what it takes to answer all that was asked. */
async function pass(page: Page, ms: number): Promise<void> {
  await page.clock.runFor(ms);
  await expect.poll(() => asksUnderWay(page), { interval: 10 }).toBe(0);
}

/** Holds a page to asking every `everyMs`, no sooner and no later; its clock has to stand still. */
export async function expectAskedEvery(
  page: Page,
  stub: Stub,
  route: string,
  everyMs: number,
): Promise<void> {
  const asked = () => stub.asked(route).length;
  // The clock stands somewhere between two asks: go to the next one first.
  const before = asked();
  for (let passed = 0; asked() === before && passed <= everyMs; passed += 100) await pass(page, 100);
  const begun = asked();
  expect(begun, 'asked at all').toBe(before + 1);
  await pass(page, everyMs - 300);
  expect(asked(), 'not sooner').toBe(begun);
  await pass(page, 400);
  expect(asked(), 'not later').toBe(begun + 1);
  await pass(page, everyMs);
  expect(asked(), 'and again').toBe(begun + 2);
}

/** Holds a page to not asking any more. */
export async function expectNotAsked(page: Page, stub: Stub, route: string): Promise<void> {
  const before = stub.asked(route).length;
  await pass(page, 30_000);
  expect(stub.asked(route).length).toBe(before);
}
