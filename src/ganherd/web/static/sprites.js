// Sheets of sprites: fetch them, remember the last ones, and draw the samples of a member.

import { themeColour } from "./dom.js";

const REMEMBERED = 48;

export class Sprites {
  constructor(source, run) {
    this.source = source;
    this.run = run.id;
    this.update(run.sprites);
    this.sheets = new Map();
  }

  /** Take the list of saved steps; a run that trains saves more of them. */
  update(facts) {
    this.facts = facts;
    this.steps = facts?.steps ?? [];
  }

  /** Learn about new sheets from the live state `[number, last step]`; only thinned lists are read again. Return whether it worked. */
  async refresh([number, last]) {
    if (this.facts && number === this.steps.length + 1 && last > this.last) this.steps = [...this.steps, last];
    else {
      const facts = await this.source.sprites(this.run).catch(() => null);
      if (!facts) return false;
      this.update(facts);
    }
    return true;
  }

  get last() { return this.steps.length ? this.steps[this.steps.length - 1] : null; }

  /** Return the saved step that is shown for a step: the last one up to it. */
  nearest(step) {
    let low = 0, high = this.steps.length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.steps[middle] <= step) low = middle; else high = middle - 1;
    }
    return this.steps[low] ?? null;
  }

  /** Return the sheet of a saved step if it is here already. */
  ready(step) { return this.sheets.get(step)?.value ?? null; }

  /** Return a promise of the sheet of a saved step. */
  sheet(step) {
    const known = this.sheets.get(step);
    if (known) {
      this.sheets.delete(step);
      this.sheets.set(step, known);
      return known.promise;
    }
    const entry = { value: null };
    entry.promise = this.source.sheet(this.run, step, this.facts.kind).then(
      (value) => (entry.value = value),
      (error) => { this.sheets.delete(step); throw error; },
    );
    this.sheets.set(step, entry);
    if (this.sheets.size > REMEMBERED) {
      const [oldest, gone] = this.sheets.entries().next().value;
      this.sheets.delete(oldest);
      gone.promise.then((value) => value.close?.(), () => {});
    }
    return entry.promise;
  }

  /** Draw the samples of a member, all of them or only some in each direction. */
  draw(pen, sheet, member, x, y, width, height, side = this.side) {
    if (this.facts.kind === "points") return this.scatter(pen, sheet[member] ?? [], x, y, width, height);
    const [tall, wide] = this.facts.tile;
    const cellWide = wide * this.side, cellTall = tall * this.side;
    const left = (member % this.facts.columns) * cellWide, top = Math.floor(member / this.facts.columns) * cellTall;
    const gap = side > 1 ? Math.max(1, Math.round(width / 60)) : 0;
    const scale = Math.min((width - gap * (side - 1)) / (wide * side), (height - gap * (side - 1)) / (tall * side));
    const [drawnWide, drawnTall] = [wide * scale, tall * scale];
    const x0 = x + (width - drawnWide * side - gap * (side - 1)) / 2, y0 = y + (height - drawnTall * side - gap * (side - 1)) / 2;
    pen.imageSmoothingEnabled = scale * (window.devicePixelRatio || 1) < 1.6;
    pen.imageSmoothingQuality = "high";
    for (let i = 0; i < side * side; i += 1) {
      const column = i % side, row = Math.floor(i / side);
      pen.drawImage(sheet, left + column * wide, top + row * tall, wide, tall, x0 + column * (drawnWide + gap), y0 + row * (drawnTall + gap), drawnWide, drawnTall);
    }
  }

  get side() { return Math.round(Math.sqrt(this.facts.samples)); }

  scatter(pen, points, x, y, width, height) {
    const { low, high } = this.facts;
    const middle = low.map((value, i) => (value + high[i]) / 2);
    const half = Math.max(...low.map((value, i) => high[i] - value)) * 0.58 || 1;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width, height);
    pen.clip();
    pen.fillStyle = themeColour("accent");
    const size = Math.max(1.1, width / 60);
    pen.globalAlpha = 0.75;
    for (const point of points) {
      if (!point) continue;
      const px = x + width * (0.5 + (point[0] - middle[0]) / (2 * half)), py = y + height * (0.5 - (point[1] - middle[1]) / (2 * half));
      pen.beginPath();
      pen.arc(px, py, size, 0, 7);
      pen.fill();
    }
    pen.restore();
  }
}

/** Draw a member at a step into a canvas as soon as its sheet is there; return the canvas. */
export function drawMember(sprites, canvas, pen, member, step, size, side) {
  const draw = (sheet) => {
    pen.clearRect(0, 0, size, size);
    pen.fillStyle = themeColour("tile");
    pen.fillRect(0, 0, size, size);
    sprites.draw(pen, sheet, member, 0, 0, size, size, side);
  };
  const sheet = sprites.ready(step);
  if (sheet) draw(sheet);
  else sprites.sheet(step).then(draw, () => {});
  return canvas;
}
