import { describe, expect, test } from 'vitest';

import { placesOf } from '../../src/charts/marks';

const WIDTH = 50;
const EDGE = 200;

/** Rows from the top, with the side; a dash where there is no room. */
function places(...xs: number[]): string[] {
  return placesOf(
    xs.map((x) => ({ x, width: WIDTH })),
    EDGE,
  ).map((place) => (place === null ? '-' : `${place.row}${place.isAtRight ? 'r' : 'l'}`));
}

describe('labels of marks', () => {
  test('share a row as long as they have room', () => {
    expect(places(0, 50, 100, 150)).toEqual(['0r', '0r', '0r', '0r']);
  });

  test('take the next row where they would lie on one another, and none when all are taken', () => {
    expect(places(0, 10, 20, 30, 50)).toEqual(['0r', '1r', '2r', '-', '0r']);
  });

  test('near the right edge lie at the left of their line, and on nothing that is there', () => {
    expect(places(190)).toEqual(['0l']);
    // From 140 to 190, where the one at 120 ends at 170.
    expect(places(120, 190)).toEqual(['0r', '1l']);
    // From 130, 145 and 150: each has to make way for the one before.
    expect(places(180, 195, 200)).toEqual(['0l', '1l', '2l']);
  });
});
