// The wall of all members: their samples on one canvas, and a link for each on top of it, which keyboards and screen readers find.

import { announce, h, resizeCanvas, themeColour } from "./dom.js";
import { nameColour } from "./colours.js";

const GAP = 10;
const FLOW = 1400, FLOWS = 3; // milliseconds of a dot on its way along an arrow, and how often it goes
const MOST_MOVING = 400; // members of a herd that is drawn for every frame

export class Wall {
  /** `describe(member)` returns the name of a link, `tip(member)` what is shown next to it. */
  constructor({ run, sprites, href, describe, tip }) {
    Object.assign(this, { run, sprites, href, describe, tip });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.links = [];
    this.element = h("div", { class: "wall" }, this.canvas);
    this.colours = [];
    this.values = [];
    this.badges = [];
    this.width = 0;
    this.watcher = new ResizeObserver(() => this.layout());
    this.watcher.observe(this.element);
    this.redraw = () => this.draw();
    addEventListener("themechange", this.redraw);
    this.stillness = matchMedia("(prefers-reduced-motion: reduce)");
    this.frame = 0;
    this.card = null;
    this.element.addEventListener("pointerleave", () => this.hideTip());
  }

  close() {
    this.watcher.disconnect();
    removeEventListener("themechange", this.redraw);
    cancelAnimationFrame(this.frame);
    this.hideTip();
  }

  get each() { return Math.max(1, Math.round(this.run.members / this.run.replicas)); }

  /** Place all tiles for the width that there is. */
  layout() {
    const width = Math.floor(this.element.clientWidth);
    if (!width || width === this.width) return;
    this.width = width;
    const { run, each } = this;
    const torus = run.layout.kind === "torus" ? run.layout : null;
    const sizes = [[4, 215], [12, 150], [20, 126], [40, 100], [120, 76], [400, 50], [1200, 36], [Infinity, 24]];
    const wanted = sizes.find(([most]) => each <= most)[1];
    this.gap = wanted < 60 ? 4 : GAP;
    let columns = torus ? torus.columns : Math.max(1, Math.floor((width + this.gap) / (wanted + this.gap)));
    if (!torus && wanted >= 100) { // few large tiles: as few rows as there can be, all of nearly equal length
      let rows = 1;
      while (rows < each && (width + this.gap) / Math.ceil(each / rows) - this.gap < 0.72 * wanted) rows += 1;
      columns = Math.ceil(each / rows);
    }
    const perClass = run.layout.per_class ?? 1; // a class does not begin in one row and end in the next
    if (perClass > 1) columns = perClass * Math.max(1, Math.floor(columns / perClass));
    const room = torus ? width - 24 : width;
    let size = Math.floor((room + this.gap) / columns) - this.gap;
    size = Math.max(12, Math.min(size, wanted < 60 ? wanted + 6 : 260, torus ? Math.max(90, (innerHeight - 400) / torus.rows - 32) : Infinity));
    this.size = Math.floor(size);
    this.caption = this.size >= 60 ? 22 : 0;
    this.columns = columns;
    this.boxes = [];
    const population = torus?.population ?? 1;
    const inner = Math.ceil(Math.sqrt(population));
    const margin = torus ? 12 : 0;
    const shift = torus ? Math.max(0, Math.floor((width - columns * (this.size + this.gap) + this.gap) / 2) - margin) : 0;
    let top = margin;
    for (const heading of this.element.querySelectorAll("h3")) heading.remove();
    for (let replica = 0; replica < run.replicas; replica += 1) {
      if (run.replicas > 1) {
        this.element.append(h("h3", { style: { left: "0", top: `${top}px` } }, `Replica ${replica + 1} of ${run.replicas}`));
        top += 26;
      }
      const cells = torus ? torus.rows * torus.columns : each;
      for (let cell = 0; cell < cells; cell += 1) {
        const x = margin + shift + (cell % columns) * (this.size + this.gap), y = top + Math.floor(cell / columns) * (this.size + this.caption + this.gap);
        const part = this.size / inner;
        for (let i = 0; i < population; i += 1) {
          this.boxes[replica * each + cell * population + i] = { x: x + (i % inner) * part, y: y + Math.floor(i / inner) * part, size: population > 1 ? part - 2 : this.size, cell };
        }
      }
      top += Math.ceil(cells / columns) * (this.size + this.caption + this.gap) + 8;
    }
    this.height = top + margin;
    this.margin = margin;
    this.shift = shift;
    this.place();
    this.draw();
  }

  place() {
    const small = (this.run.layout.population ?? 1) > 1;
    if (!this.links.length) {
      this.links = this.boxes.map((_, member) => {
        const name = h("b"), value = h("span");
        const link = h("a", { href: this.href(member), onpointerenter: () => this.showTip(member), onfocus: () => this.showTip(member), onblur: () => this.hideTip() }, h("span", { class: "cap", "aria-hidden": "true" }, name, value));
        link.parts = { name, value };
        return link;
      });
      this.element.append(...this.links);
      this.label();
    }
    this.links.forEach((link, member) => {
      const box = this.boxes[member], caption = small ? 0 : this.caption;
      link.style.cssText = `left:${box.x}px;top:${box.y}px;width:${box.size}px;height:${box.size + caption}px`;
      link.firstChild.hidden = !caption;
    });
    this.pen = resizeCanvas(this.canvas, this.width, this.height);
  }

  label() {
    this.links.forEach((link, member) => {
      const { short, value, full } = this.describe(member);
      if (link.parts.name.textContent !== short) link.parts.name.textContent = short;
      if (link.parts.value.textContent !== value) link.parts.value.textContent = value;
      link.setAttribute("aria-label", full);
    });
  }

  /** Show other numbers: a colour for each member, and what overlays say. */
  set({ colours = this.colours, badges = this.badges, overlay = this.overlay }) {
    const isNew = JSON.stringify(overlay) !== JSON.stringify(this.overlay);
    Object.assign(this, { colours, badges, overlay });
    if (this.links.length) this.label();
    this.draw();
    if (isNew) this.flow();
  }

  /** Let a dot move along each new arrow, a few times. */
  flow() {
    cancelAnimationFrame(this.frame);
    this.arrived = null;
    if (this.stillness.matches || !this.overlay?.length || this.run.members > MOST_MOVING) return;
    const began = performance.now();
    const move = (now) => {
      const turns = Math.max(0, now - began) / FLOW;
      this.arrived = turns < FLOWS ? turns % 1 : null;
      this.draw();
      if (this.arrived !== null) this.frame = requestAnimationFrame(move);
    };
    this.frame = requestAnimationFrame(move);
  }

  show(sheet) {
    this.sheet = sheet;
    this.draw();
  }

  draw() {
    if (!this.pen || !this.boxes) return;
    const { pen } = this;
    pen.clearRect(0, 0, this.width, this.height);
    const tile = themeColour("tile"), line = themeColour("line");
    if (this.margin) this.drawTorus(pen, line);
    const frame = this.size < 44 ? 2 : this.size < 100 ? 3 : 4;
    for (let member = 0; member < this.boxes.length; member += 1) {
      const { x, y, size } = this.boxes[member];
      pen.fillStyle = this.colours[member] ?? tile;
      rounded(pen, x, y, size, size, Math.min(9, size / 7));
      pen.fill();
      pen.save();
      rounded(pen, x + frame, y + frame, size - 2 * frame, size - 2 * frame, Math.min(6, size / 9));
      pen.clip();
      pen.fillStyle = this.sprites.facts?.kind === "points" ? themeColour("card") : tile;
      pen.fillRect(x, y, size, size);
      if (this.sheet) this.sprites.draw(pen, this.sheet, member, x + frame, y + frame, size - 2 * frame, size - 2 * frame, size < 70 ? 1 : this.sprites.side);
      pen.restore();
      const badge = this.badges[member];
      if (badge) this.drawBadge(pen, x, y, size, badge);
    }
    if (this.overlay) this.drawOverlay(pen);
  }

  drawTorus(pen, line) {
    pen.strokeStyle = line;
    pen.setLineDash([5, 5]);
    const wide = this.columns * (this.size + this.gap) - this.gap + 14;
    pen.strokeRect(this.margin + this.shift - 7, this.margin - 7, wide, this.height - 2 * this.margin + 2);
    pen.setLineDash([]);
  }

  drawBadge(pen, x, y, size, { text, colour }) {
    if (size < 44) {
      pen.fillStyle = colour;
      pen.beginPath();
      pen.arc(x + size - 5, y + 5, Math.max(3, size / 10), 0, 7);
      pen.fill();
      return;
    }
    pen.font = "600 11px system-ui, sans-serif";
    const width = pen.measureText(text).width + 12;
    pen.fillStyle = colour;
    rounded(pen, x + size - width - 7, y + 7, width, 18, 9);
    pen.fill();
    pen.fillStyle = "#fff";
    pen.textBaseline = "middle";
    pen.fillText(text, x + size - width - 1, y + 16.5);
  }

  drawOverlay(pen) {
    pen.lineCap = "round";
    const { layout, members, replicas } = this.run, each = members / replicas;
    const isTorus = layout.kind === "torus";
    const wide = isTorus ? this.columns * (this.size + this.gap) : Infinity;
    const tall = isTorus ? layout.rows * (this.size + this.caption + this.gap) : Infinity;
    for (const { from, to, colour, both } of this.overlay) {
      const a = this.boxes[from], b = this.boxes[to];
      if (!a || !b) continue;
      const [x1, y1, x2, y2] = [a.x + a.size / 2, a.y + a.size / 2, b.x + b.size / 2, b.y + b.size / 2];
      const dx = Math.abs(x2 - x1) > wide / 2 ? Math.sign(x1 - x2) * wide : 0;
      const dy = Math.abs(y2 - y1) > tall / 2 ? Math.sign(y1 - y2) * tall : 0;
      const draw = (x, y) => arrow(pen, x1 - x, y1 - y, x2 + dx - x, y2 + dy - y, colour ?? nameColour(from), both, this.size, this.arrived);
      pen.save();
      if (dx || dy) { // it leaves over the edge of the torus and enters on the other side
        pen.beginPath();
        pen.rect(this.margin + this.shift - 7, this.boxes[Math.floor(from / each) * each].y - 7, wide - this.gap + 14, tall + 10);
        pen.clip();
        draw(dx, dy);
      }
      draw(0, 0);
      pen.restore();
    }
  }

  showTip(member) {
    const link = this.links[member], box = link.getBoundingClientRect();
    this.hideTip();
    const card = h("div", { class: "tip", role: "presentation" });
    const content = this.tip(member, (more) => { if (this.card === card) { card.append(more); this.placeTip(card, box); } });
    card.append(...content);
    document.body.append(card);
    this.card = card;
    this.placeTip(card, box);
    announce(link.getAttribute("aria-label"));
  }

  placeTip(card, box) {
    const { offsetWidth: wide, offsetHeight: tall } = card;
    const left = box.right + 12 + wide > innerWidth ? Math.max(8, box.left - wide - 12) : box.right + 12;
    const top = Math.max(8, Math.min(innerHeight - tall - 8, box.top));
    card.style.cssText = `left:${left}px;top:${top}px`;
  }

  hideTip() {
    this.card?.remove();
    this.card = null;
  }
}

function rounded(pen, x, y, width, height, radius) {
  pen.beginPath();
  pen.roundRect(x, y, width, height, radius);
}

function arrow(pen, x1, y1, x2, y2, colour, both, size, arrived) {
  const long = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [ux, uy] = [(x2 - x1) / long, (y2 - y1) / long];
  const inset = size * 0.3;
  const [ax, ay, bx, by] = [x1 + ux * inset, y1 + uy * inset, x2 - ux * inset, y2 - uy * inset];
  const bend = Math.min(26, long / 6);
  const [cx, cy] = [(ax + bx) / 2 - uy * bend, (ay + by) / 2 + ux * bend];
  for (const [style, width] of [["#ffffffcc", 6], [colour, 3]]) {
    pen.strokeStyle = style;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(ax, ay);
    pen.quadraticCurveTo(cx, cy, bx, by);
    pen.stroke();
  }
  head(pen, cx, cy, bx, by, colour);
  if (both) head(pen, cx, cy, ax, ay, colour);
  for (const part of arrived == null ? [] : both ? [arrived, 1 - arrived] : [arrived]) {
    const along = (a, c, b) => (1 - part) ** 2 * a + 2 * part * (1 - part) * c + part ** 2 * b;
    pen.fillStyle = colour;
    pen.strokeStyle = "#fff";
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(along(ax, cx, bx), along(ay, cy, by), 6, 0, 7);
    pen.fill();
    pen.stroke();
  }
}

function head(pen, cx, cy, x, y, colour) {
  const angle = Math.atan2(y - cy, x - cx);
  pen.fillStyle = colour;
  pen.beginPath();
  pen.moveTo(x + 5 * Math.cos(angle), y + 5 * Math.sin(angle));
  for (const turn of [2.5, -2.5]) pen.lineTo(x + 10 * Math.cos(angle + turn), y + 10 * Math.sin(angle + turn));
  pen.fill();
}
