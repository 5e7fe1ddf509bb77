// Draw the answer of the server to a request for samples: one picture of all of them, or points.

import { h, resizeCanvas, themeColour } from "./dom.js";

/** Return an element that shows samples; the label and the member of an image appear under the pointer. */
export function sampleView(answer, alt, width = 640) {
  if (answer.kind === "points") return pointsView(answer.points, alt, Math.min(width, 480));
  const [tall, wide] = answer.tile, { columns } = answer, rows = Math.ceil(answer.member.length / columns);
  const gap = 3, tile = Math.max(4, Math.min(84, Math.floor((width + gap) / columns) - gap)), high = Math.round((tile * tall) / wide);
  const canvas = h("canvas", { role: "img", "aria-label": alt, class: "samples" });
  const pen = resizeCanvas(canvas, columns * (tile + gap) - gap, rows * (high + gap) - gap);
  canvas.style.setProperty("height", "auto");
  const image = new Image();
  image.addEventListener("load", () => {
    pen.imageSmoothingEnabled = tile / wide < 1.6;
    answer.member.forEach((_, i) => {
      const column = i % columns, row = Math.floor(i / columns);
      pen.drawImage(image, column * wide, row * tall, wide, tall, column * (tile + gap), row * (high + gap), tile, high);
    });
    canvas.dataset.drawn = "true";
  });
  image.src = answer.image;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = Math.floor(((event.clientY - box.top) / box.height) * rows) * columns + Math.floor(((event.clientX - box.left) / box.width) * columns);
    const label = answer.labels[answer.y[at]];
    canvas.title = at < answer.member.length ? `${label ? `${label}, ` : ""}member ${answer.member[at]}` : "";
  });
  return canvas;
}

function pointsView(points, alt, size) {
  const canvas = h("canvas", { role: "img", "aria-label": alt });
  const pen = resizeCanvas(canvas, size, size);
  const known = points.filter(Boolean);
  const reach = Math.max(...known.flat().map(Math.abs), 1e-6) * 1.08;
  pen.fillStyle = themeColour("tile");
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = themeColour("accent");
  pen.globalAlpha = 0.65;
  for (const [x, y] of known) {
    pen.beginPath();
    pen.arc(size * (0.5 + x / (2 * reach)), size * (0.5 - y / (2 * reach)), 2.4, 0, 7);
    pen.fill();
  }
  canvas.style.setProperty("border-radius", "10px");
  canvas.style.setProperty("max-width", "100%");
  return canvas;
}

/** Return a player of a walk: frames of one picture, one after another, back and forth. */
export class WalkPlayer {
  constructor(size) {
    this.canvas = h("canvas", { role: "img", "aria-label": "a walk between two noises" });
    this.size = size;
    this.pen = resizeCanvas(this.canvas, size, size);
    this.canvas.style.setProperty("border-radius", "10px");
    this.range = h("input", { type: "range", min: 0, value: 0, "aria-label": "Frame of the walk", oninput: () => { this.stop(); this.draw(Number(this.range.value)); } });
    this.button = h("button", { type: "button", onclick: () => (this.timer ? this.stop() : this.start()) }, "Play");
    this.element = h("div", null, this.canvas, h("div", { class: "row", style: { "margin-top": "8px", "max-width": `${size}px`, "flex-wrap": "nowrap" } }, this.button, this.range));
  }

  async set(answer) {
    this.answer = answer;
    this.frames = answer.member.length;
    this.range.max = this.frames - 1;
    if (answer.kind === "images") {
      this.image = new Image();
      this.image.src = answer.image;
      await this.image.decode();
    }
    this.draw(0);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.start();
  }

  draw(frame) {
    const { pen, size, answer } = this;
    this.range.value = frame;
    pen.fillStyle = themeColour("tile");
    pen.fillRect(0, 0, size, size);
    if (answer.kind === "images") {
      const [tall, wide] = answer.tile;
      pen.imageSmoothingEnabled = size / wide < 3;
      pen.drawImage(this.image, (frame % answer.columns) * wide, Math.floor(frame / answer.columns) * tall, wide, tall, 0, 0, size, (size * tall) / wide);
      return;
    }
    const reach = Math.max(...answer.points.filter(Boolean).flat().map(Math.abs), 1e-6) * 1.15;
    const at = ([x, y]) => [size * (0.5 + x / (2 * reach)), size * (0.5 - y / (2 * reach))];
    pen.strokeStyle = themeColour("soft");
    pen.beginPath();
    answer.points.filter(Boolean).forEach((point, i) => pen[i ? "lineTo" : "moveTo"](...at(point)));
    pen.stroke();
    const now = answer.points[frame];
    if (!now) return;
    pen.fillStyle = themeColour("accent");
    pen.beginPath();
    pen.arc(...at(now), 6, 0, 7);
    pen.fill();
  }

  start() {
    let at = Number(this.range.value), way = 1;
    clearInterval(this.timer);
    this.button.textContent = "Pause";
    this.timer = setInterval(() => {
      if (at + way >= this.frames || at + way < 0) way = -way;
      at += way;
      this.draw(at);
    }, 60);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }
}
