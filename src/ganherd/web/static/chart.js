// A chart of lines and bands on a canvas: exact values under the pointer, zoom by dragging, and the same with the keyboard.

import { announce, count, h, num, resizeCanvas, themeColour } from "./dom.js";

const PAD = { left: 56, right: 26, top: 10, bottom: 30 };
const NARROW = 400; // pixels of a chart whose axis has less room
const LISTED = 10; // values next to the pointer

export class Chart {
  /** `onzoom(range)` is called with two values of x, or with null when everything is to be shown again. */
  constructor({ height = 300, label, onzoom, xText = count, yText = num }) {
    Object.assign(this, { tall: height, onzoom, xText, yText, label });
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.read = h("div", { class: "read", hidden: true });
    this.element = h("div", { class: "chart" }, this.canvas, this.read);
    this.data = { lines: [], bands: [] };
    this.range = null;
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.element);
    this.redraw = () => this.draw();
    addEventListener("themechange", this.redraw);
    this.listen();
  }

  close() {
    this.watcher.disconnect();
    removeEventListener("themechange", this.redraw);
  }

  /** Show lines `{name, colour, x, y, thin}` and bands `{name, colour, x, levels}` of five levels. */
  set(data, { log = false, xLabel = "step", mark = null } = {}) {
    Object.assign(this, { data, log, xLabel, mark });
    this.index();
    this.draw();
  }

  index() {
    const xs = new Set();
    for (const one of [...this.data.lines, ...this.data.bands]) for (const x of one.x) xs.add(x);
    this.xs = [...xs].sort((a, b) => a - b);
  }

  limits() {
    const [first, last] = this.range ?? [this.xs[0] ?? 0, this.xs[this.xs.length - 1] ?? 1];
    let low = Infinity, high = -Infinity;
    const see = (x, y) => {
      for (let i = 0; i < x.length; i += 1) {
        const value = y[i];
        if (x[i] < first || x[i] > last || value === null || !Number.isFinite(value) || (this.log && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    };
    for (const line of this.data.lines) see(line.x, line.y);
    for (const band of this.data.bands) for (const level of band.levels) see(band.x, level);
    if (low > high) [low, high] = this.log ? [0.1, 1] : [0, 1];
    if (this.log) [low, high] = [Math.log10(low), Math.log10(high)];
    const room = (high - low) * 0.06 || Math.max(Math.abs(high) * 0.1, 0.5);
    return { first, last: last > first ? last : first + 1, low: low - room, high: high + room };
  }

  draw() {
    const width = Math.floor(this.element.clientWidth);
    if (!width || !this.xs) return;
    const pen = resizeCanvas(this.canvas, width, this.tall);
    this.canvas.style.setProperty("width", "100%");
    const view = this.limits();
    const left = width < NARROW ? 42 : PAD.left, right = width - PAD.right, top = PAD.top, bottom = this.tall - PAD.bottom;
    const px = (x) => left + ((x - view.first) / (view.last - view.first)) * (right - left);
    const py = (y) => bottom - (((this.log ? Math.log10(y) : y) - view.low) / (view.high - view.low)) * (bottom - top);
    this.view = { ...view, px, py, left, right, top, bottom };
    const soft = themeColour("soft"), rule = themeColour("line");
    pen.font = "12px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.fillStyle = soft;
    pen.strokeStyle = rule;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, text] of this.log ? logTicks(view.low, view.high) : ticks(view.low, view.high, this.tall < 220 ? 4 : 6, this.yText)) {
      const y = py(value);
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(right, y);
      pen.stroke();
      pen.fillText(text, left - 8, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const [value, text] of ticks(view.first, view.last, Math.max(2, Math.floor(width / 95)), this.xText)) pen.fillText(text, px(value), bottom + 9);
    pen.save();
    pen.beginPath();
    pen.rect(left, top - 2, right - left, bottom - top + 4);
    pen.clip();
    for (const band of this.data.bands) this.drawBand(pen, band, px, py);
    const nearLast = (line) => Number(line.name === this.near);
    for (const line of [...this.data.lines].sort((a, b) => nearLast(a) - nearLast(b))) this.drawLine(pen, line, px, py);
    if (this.mark !== null && this.mark >= view.first && this.mark <= view.last) upright(pen, px(this.mark), top, bottom, themeColour("accent"), [4, 4]);
    if (this.at !== undefined && this.at !== null) upright(pen, px(this.at), top, bottom, soft, []);
    pen.restore();
    if (this.drag) {
      pen.fillStyle = `${themeColour("accent")}22`;
      pen.fillRect(Math.min(...this.drag), top, Math.abs(this.drag[1] - this.drag[0]), bottom - top);
    }
    if (!this.xs.length) {
      pen.fillStyle = soft;
      pen.textAlign = "center";
      pen.fillText("Nothing is recorded yet.", (left + right) / 2, (top + bottom) / 2);
    }
  }

  drawBand(pen, band, px, py) {
    for (const [low, high, alpha] of [[0, 4, 0.12], [1, 3, 0.24]]) {
      pen.globalAlpha = alpha;
      pen.fillStyle = band.colour;
      pen.beginPath();
      const ok = (i) => this.shown(band.levels[low][i]) && this.shown(band.levels[high][i]);
      const points = band.x.map((_, i) => i).filter(ok);
      points.forEach((i, k) => pen[k ? "lineTo" : "moveTo"](px(band.x[i]), py(band.levels[high][i])));
      for (const i of points.reverse()) pen.lineTo(px(band.x[i]), py(band.levels[low][i]));
      pen.fill();
    }
    pen.globalAlpha = 1;
    this.drawLine(pen, { x: band.x, y: band.levels[2], colour: band.colour }, px, py);
  }

  shown(value) { return value !== null && value !== undefined && (!this.log || value > 0); }

  drawLine(pen, line, px, py) {
    const isNear = this.near && this.near === line.name;
    pen.strokeStyle = line.colour;
    pen.globalAlpha = isNear ? 1 : line.thin ? (this.near ? 0.18 : 0.4) : this.near && this.data.lines.length > 1 ? 0.45 : 1;
    pen.lineWidth = isNear ? 2.6 : line.thin ? 1 : 1.8;
    pen.lineJoin = "round";
    pen.beginPath();
    const points = line.x.map((_, i) => i).filter((i) => this.shown(line.y[i])); // figures of looks are not in every record
    points.forEach((i, k) => pen[k ? "lineTo" : "moveTo"](px(line.x[i]), py(line.y[i])));
    pen.stroke();
    if (points.length === 1) { pen.fillStyle = line.colour; pen.beginPath(); pen.arc(px(line.x[points[0]]), py(line.y[points[0]]), 3, 0, 7); pen.fill(); }
    pen.globalAlpha = 1;
  }

  /** Show the exact values at the recorded x that is nearest. */
  pointAt(x, y) {
    if (!this.xs?.length || !this.view) return;
    const at = this.xs.reduce((best, each) => (Math.abs(each - x) < Math.abs(best - x) ? each : best), this.xs[0]);
    this.at = at;
    const values = [];
    for (const line of this.data.lines) {
      const i = line.x.indexOf(at);
      if (i >= 0 && this.shown(line.y[i])) values.push({ name: line.name, colour: line.colour, value: line.y[i] });
    }
    for (const band of this.data.bands) {
      const i = band.x.indexOf(at);
      if (i >= 0 && this.shown(band.levels[2][i])) values.push({ name: band.name, colour: band.colour, value: band.levels[2][i], text: `${this.yText(band.levels[2][i])}  (${this.yText(band.levels[0][i])} to ${this.yText(band.levels[4][i])})` });
    }
    if (y !== null) values.sort((a, b) => Math.abs(this.view.py(a.value) - y) - Math.abs(this.view.py(b.value) - y));
    this.near = values.length > 1 && y !== null ? values[0].name : null;
    const listed = values.slice(0, LISTED);
    this.read.replaceChildren(h("b", null, `${this.xLabel} ${this.xText(at)}`), ...listed.map((one) => h("div", null, h("i", { style: { background: one.colour } }), `${one.name}: `, h("b", null, one.text ?? this.yText(one.value)))), values.length > LISTED ? h("div", { class: "soft" }, `and ${values.length - LISTED} more`) : "");
    this.read.hidden = !values.length;
    const left = this.view.px(at), box = this.element.clientWidth;
    this.read.style.cssText = left < box / 2 ? `left:${left + 14}px;top:12px` : `right:${box - left + 14}px;top:12px`;
    this.draw();
    return listed;
  }

  leavePoint() {
    this.at = this.near = null;
    this.read.hidden = true;
    this.draw();
  }

  zoom(range) {
    this.range = range;
    this.onzoom?.(range);
    this.draw();
  }

  listen() {
    const where = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const toX = (x) => this.view.first + ((x - this.view.left) / (this.view.right - this.view.left)) * (this.view.last - this.view.first);
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.view || event.button) return;
      this.drag = [where(event)[0], where(event)[0]];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.view) return;
      const [x, y] = where(event);
      if (this.drag) this.drag[1] = x;
      this.pointAt(toX(x), y);
    });
    this.canvas.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (drag && Math.abs(drag[1] - drag[0]) > 8) this.zoom(drag.map(toX).sort((a, b) => a - b));
    });
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; });
    this.canvas.addEventListener("pointerleave", () => { if (!this.drag) this.leavePoint(); });
    this.canvas.addEventListener("dblclick", () => this.zoom(null));
    this.canvas.addEventListener("blur", () => this.leavePoint());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (!this.view) return;
    const { first, last } = this.view;
    const i = this.at === undefined || this.at === null ? -1 : this.xs.indexOf(this.at);
    const middle = i >= 0 ? this.at : (first + last) / 2;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const next = i < 0 ? this.xs.length - 1 : Math.min(this.xs.length - 1, Math.max(0, i + (event.key === "ArrowRight" ? 1 : -1)));
      const values = this.pointAt(this.xs[next], null) ?? [];
      announce(`${this.xLabel} ${this.xText(this.xs[next])}: ${values.slice(0, 4).map((one) => `${one.name} ${one.text ?? this.yText(one.value)}`).join(", ")}`);
    } else if (event.key === "+" || event.key === "=") this.zoom([middle - (last - first) / 4, middle + (last - first) / 4]);
    else if (event.key === "-" || event.key === "Escape" || event.key === "0") this.zoom(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function upright(pen, x, top, bottom, colour, dash) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(x, top);
  pen.lineTo(x, bottom);
  pen.stroke();
  pen.setLineDash([]);
}

function ticks(low, high, wanted, text) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((one) => one * power >= raw) ?? 10);
  const out = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) out.push([value, text(Number(value.toPrecision(10)))]);
  return out;
}

function logTicks(low, high) {
  const out = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = Math.ceil(low); power <= high; power += every) out.push([10 ** power, num(10 ** power)]);
  if (out.length < 2) for (const at of [low + (high - low) * 0.1, high - (high - low) * 0.1]) out.push([10 ** at, num(10 ** at)]);
  return out;
}
