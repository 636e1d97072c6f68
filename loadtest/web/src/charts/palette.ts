// Colours of the style sheets for what is drawn on a canvas, which knows no style sheets.

const TOKENS = ['ink', 'quiet', 'bad', 'hair', 'p50', 'p95'] as const;
type Token = (typeof TOKENS)[number];
export type Palette = Record<Token, string> & { font: string; remPx: number };

/** As they are now; another theme makes others. */
export function readPalette(): Palette {
  const probe = document.createElement('span');
  document.body.append(probe);
  const style = getComputedStyle(probe);
  const colours = TOKENS.map((token) => {
    probe.style.color = `var(--${token})`;
    return [token, style.color] as const;
  });
  const font = style.fontFamily;
  probe.remove();
  return { ...(Object.fromEntries(colours) as Record<Token, string>), font, remPx: readRemPx() };
}

/** The style sheets' unit: a booth's screen has a larger one. */
export function readRemPx(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}

/** The same colour, so much of it. */
export function faded(colour: string, share: number): string {
  return colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);
}
