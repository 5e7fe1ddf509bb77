// A filmstrip: a few saved steps next to each other, each with one sample of every member, or of some of them.

import { count, h, resizeCanvas, themeColour } from "./dom.js";

const MOST_FRAMES = 8;
const MOST_SHOWN = 16; // members of a frame
const WIDE = 150; // pixels of a frame

/** Return a few steps, with the first and the last: early ones lie closer together, because most happens then. */
export function earlySteps(steps, most = MOST_FRAMES) {
  if (steps.length <= most) return steps;
  let place = -1;
  return Array.from({ length: most }, (_, i) => steps[(place = Math.max(place + 1, Math.round(steps.length ** (i / (most - 1))) - 1))]);
}

/** Return buttons, one for each step, that call `onstep`; without it, figures. */
export function frames(sprites, run, onstep = null) {
  const each = Math.max(1, Math.round(run.members / run.replicas)), shown = Math.min(each, MOST_SHOWN);
  const members = Array.from({ length: shown }, (_, i) => Math.round((i * (each - 1)) / Math.max(1, shown - 1)));
  const isPoints = sprites.facts.kind === "points", least = Math.ceil(Math.sqrt(shown));
  const columns = isPoints ? 1 : (shown % least && shown % (least + 1) === 0) ? least + 1 : least; // few empty places
  const rows = isPoints ? 1 : Math.ceil(shown / columns), size = WIDE / columns;
  return earlySteps(sprites.steps).map((step) => {
    const canvas = h("canvas", { role: "img", "aria-label": `samples of ${run.name} at step ${count(step)}` });
    const pen = resizeCanvas(canvas, WIDE, Math.round(rows * size));
    canvas.style.cssText = "";
    const draw = (sheet) => {
      pen.fillStyle = themeColour("tile");
      pen.fillRect(0, 0, WIDE, rows * size);
      members.forEach((member, i) => {
        if (isPoints) sprites.draw(pen, sheet, member, 0, 0, WIDE, WIDE);
        else sprites.draw(pen, sheet, member, (i % columns) * size + 0.5, Math.floor(i / columns) * size + 0.5, size - 1, size - 1, 1);
      });
      canvas.dataset.drawn = "true";
    };
    sprites.sheet(step).then(draw, () => {});
    addEventListener("themechange", () => sprites.sheet(step).then(draw, () => {}));
    const text = `step ${count(step)}`;
    return onstep ? h("button", { type: "button", "data-step": step, "aria-label": `Show ${text} of all members`, onclick: () => onstep(step) }, canvas, text) : h("figure", null, canvas, h("figcaption", null, text));
  });
}
