// A slider that moves through the saved steps, plays them, and follows a run that trains.

import { announce, count, h } from "./dom.js";

const SPEEDS = [["4", "slow"], ["10", "normal"], ["25", "fast"]];

export class TimeBar {
  /** `onstep(step, isLast)` is called with a saved step, or with null if there are none. */
  constructor(steps, step, onstep) {
    this.steps = steps;
    this.within = null; // the element in which its keys work; null: on the whole page
    this.onstep = onstep;
    this.follows = step === null;
    this.playing = false;
    this.perSecond = 10;
    this.range = h("input", { type: "range", min: 0, max: Math.max(0, steps.length - 1), step: 1, "aria-label": "Saved step", oninput: () => this.go(Number(this.range.value), true) });
    this.button = h("button", { type: "button", class: "play", "aria-label": "Play", onclick: () => this.toggle() }, "▶");
    this.newest = h("button", { type: "button", title: "Follow the newest step", onclick: () => this.go(this.steps.length - 1, true) }, "Newest");
    this.out = h("output", { class: "mono" });
    const speed = h("select", { class: "speed", "aria-label": "Speed", onchange: () => { this.perSecond = Number(speed.value); } }, SPEEDS.map(([value, text]) => h("option", { value }, text)));
    speed.value = "10";
    this.element = h("div", { class: "time", role: "group", "aria-label": "Time" }, this.button, speed, h("div", { class: "range" }, this.range), this.out, this.newest);
    this.keys = (event) => this.key(event);
    addEventListener("keydown", this.keys);
    this.index = this.follows ? steps.length - 1 : this.indexOf(step);
    this.show();
  }

  get step() { return this.steps[this.index] ?? null; }

  indexOf(step) {
    let best = 0;
    this.steps.forEach((each, i) => { if (each <= step) best = i; });
    return best;
  }

  /** Take a longer list of saved steps; stay at the step that is shown, or follow the newest. */
  update(steps) {
    const shown = this.step;
    this.steps = steps;
    this.range.max = Math.max(0, steps.length - 1);
    this.index = this.follows || shown === null ? steps.length - 1 : this.indexOf(shown);
    this.show();
    if (this.step !== shown) this.onstep(this.step, this.follows);
  }

  go(index, byHand = false) {
    const next = Math.min(this.steps.length - 1, Math.max(0, index));
    if (byHand) this.pause();
    this.follows = next === this.steps.length - 1;
    if (next === this.index) return this.show();
    this.index = next;
    this.show();
    this.onstep(this.step, this.follows);
  }

  show() {
    this.range.value = this.index;
    this.range.disabled = this.steps.length < 2;
    this.button.disabled = this.steps.length < 2;
    const text = this.step === null ? "no saved step" : `step ${count(this.step)}`;
    this.out.textContent = text;
    this.range.setAttribute("aria-valuetext", text);
    this.newest.setAttribute("aria-pressed", String(this.follows));
  }

  toggle() { this.playing ? this.pause() : this.play(); }

  play() {
    if (this.steps.length < 2) return;
    if (this.index >= this.steps.length - 1) { this.index = -1; this.go(0); }
    this.playing = true;
    this.button.textContent = "❚❚";
    this.button.setAttribute("aria-label", "Pause");
    let last = performance.now();
    const tick = async (now) => {
      if (!this.playing) return;
      if (now - last >= 1000 / this.perSecond) {
        last = now;
        if (this.index >= this.steps.length - 1) return this.pause();
        this.index += 1;
        this.follows = this.index === this.steps.length - 1;
        this.show();
        await this.onstep(this.step, this.follows); // a slow network slows the film down instead of skipping frames
      }
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    if (this.playing) announce(`Paused at ${this.out.textContent}`);
    this.playing = false;
    this.button.textContent = "▶";
    this.button.setAttribute("aria-label", "Play");
  }

  key(event) {
    const element = event.target;
    const types = element instanceof HTMLElement ? element.tagName : "";
    if (this.within && !this.within.contains(element)) return;
    if (event.altKey || event.ctrlKey || event.metaKey || ["SELECT", "TEXTAREA"].includes(types)) return;
    if (types === "INPUT" && element !== this.range) return;
    if (element instanceof HTMLElement && element.closest(".chart")) return;
    if (event.key === " " && (types === "BUTTON" || types === "A")) return;
    const moves = { ArrowLeft: this.index - 1, ArrowRight: this.index + 1, Home: 0, End: this.steps.length - 1, PageUp: this.index - 10, PageDown: this.index + 10 };
    if (event.key === " ") this.toggle();
    else if (event.key in moves && (element === this.range || ["ArrowLeft", "ArrowRight"].includes(event.key))) this.go(moves[event.key], true);
    else return;
    event.preventDefault();
  }

  close() {
    this.playing = false;
    removeEventListener("keydown", this.keys);
  }
}
