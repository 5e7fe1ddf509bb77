// Curves of any recorded figure over steps or time, of one run or of several: lines for few members, a band for many.

import { choice, debounced, duration, figureText, fill, h, num, segmented, count } from "./dom.js";
import { nameColour } from "./colours.js";
import { Chart } from "./chart.js";

const MOST_POINTS = 1200; // of a line that grows; then it is thinned again
const MOST_LINES = 24; // members that are drawn as lines unless somebody asks for more

export class Curves {
  /** Show figures of some runs. `mark()` returns the step that is marked, or null. */
  constructor(source, runs, { figure = null, figures = null, members = null, height = 320, controls = true } = {}) {
    Object.assign(this, { source, runs, members });
    const known = new Map();
    for (const one of figures ?? runs.flatMap((run) => run.figures)) if (!known.has(one.name)) known.set(one.name, one);
    this.figures = [...known.values()];
    this.figure = known.get(figure) ?? this.figures[0];
    this.over = "step";
    this.log = false;
    const lines = runs.length === 1 && (members?.length ?? runs[0].members) <= MOST_LINES;
    this.shape = lines ? "lines" : "band";
    this.zoomed = null;
    this.chart = new Chart({ height, label: "", onzoom: (range) => { this.zoomed = range; this.reset.hidden = range === null; this.load(); }, yText: (value) => figureText(this.figure, value) });
    this.keys = h("ul", { class: "keys" });
    this.about = h("p", { class: "small soft", style: { margin: "6px 0 0" } });
    this.problem = h("p", { class: "note bad", hidden: true });
    this.reset = h("button", { type: "button", hidden: true, onclick: () => this.chart.zoom(null) }, "Show all");
    this.element = h("div", null,
      controls ? h("div", { class: "row", style: { "margin-bottom": "12px" } },
        choice(this.figures.map((one) => [one.name, one.label]), this.figure?.name, (name) => { this.figure = known.get(name); this.onfigure?.(name); this.load(); }, { "aria-label": "Figure" }),
        segmented("Horizontal axis", [["step", "steps"], ["seconds", "time"]], "step", (over) => { this.over = over; this.chart.zoom(null); }),
        segmented("Drawn as", [["lines", "lines"], ["band", "band"]], this.shape, (shape) => { this.shape = shape; this.load(); }),
        h("label", { class: "check" }, h("input", { type: "checkbox", onchange: (event) => { this.log = event.target.checked; this.show(); } }), "log axis"),
        this.reset,
        h("button", { type: "button", class: "quiet", onclick: () => this.save() }, "CSV")) : null,
      this.problem, this.chart.element, this.keys, this.about);
    this.again = debounced(() => this.append().catch(() => {}), 250);
  }

  close() { this.stopped = true; this.chart.close(); }

  /** Fetch what is shown, in as much detail as can be seen. */
  load() { return (this.loading = this.fetchShown()); }

  async fetchShown() {
    if (!this.figure) return this.show();
    const own = (this.turn = (this.turn ?? 0) + 1);
    const zoom = this.zoomed && this.over === "step" ? { first: Math.max(0, Math.floor(this.zoomed[0])), last: Math.ceil(this.zoomed[1]) } : {};
    try {
      const answers = await Promise.all(this.runs.map((run) => this.source.metrics(run.id, { ...this.request(run), ...zoom })));
      if (own !== this.turn || this.stopped) return;
      this.answers = answers;
      const damaged = answers.reduce((sum, one) => sum + one.damaged, 0);
      this.problem.hidden = !damaged;
      this.problem.textContent = damaged ? `${count(damaged)} records are damaged and left out.` : "";
      this.show();
    } catch (error) {
      this.problem.hidden = false;
      this.problem.textContent = error.message;
    }
  }

  /** Return what is asked for of a run. */
  request(run) {
    const lines = this.shape === "lines", number = lines ? this.members?.length ?? run.members : 1;
    const points = Math.max(40, Math.min(number > 1 ? 400 : 600, Math.floor(60000 / number)));
    return { figures: this.figure.name, members: lines ? (this.members ?? "all").toString() : null, points };
  }

  /** Fetch only the records that were written since, and append them. */
  async append() {
    if (this.zoomed || !this.answers) return;
    const own = this.turn, name = this.figure.name;
    const added = await Promise.all(this.runs.map((run, i) => this.source.metrics(run.id, { ...this.request(run), offset: this.answers[i].offset })));
    if (own !== this.turn || this.stopped) return;
    const kind = (answer) => Object.keys(answer.figures[name])[0];
    const fits = added.every((answer, i) => !answer.restarted && (!answer.step.length || (kind(answer) === kind(this.answers[i]) && this.answers[i].step.length + answer.step.length <= MOST_POINTS)));
    if (!fits) return this.load();
    added.forEach((answer, i) => {
      const known = this.answers[i], from = answer.figures[name], to = known.figures[name];
      known.offset = answer.offset;
      if (!answer.step.length) return;
      known.step.push(...answer.step);
      known.seconds.push(...answer.seconds);
      if (to.all) to.all.push(...from.all);
      (to.band ?? to.lines ?? []).forEach((row, k) => row.push(...(from.band ?? from.lines)[k]));
    });
    this.show();
  }

  show() {
    const lines = [], bands = [];
    (this.answers ?? []).forEach((answer, at) => {
      const run = this.runs[at], column = answer.figures[this.figure.name];
      const x = this.over === "step" ? answer.step : answer.seconds;
      const several = this.runs.length > 1;
      if (column.all) lines.push({ name: several ? run.name : this.figure.label, colour: nameColour(at), x, y: column.all });
      else if (column.band) bands.push({ name: several ? run.name : "median", colour: nameColour(at), x, levels: column.band });
      else column.lines.forEach((y, i) => {
        const member = column.members[i], colour = several ? nameColour(at) : nameColour(member);
        const name = run.labels[member] ?? run.names[member] ?? `member ${member}`;
        lines.push({ name: several ? `${run.name}, ${name}` : name, colour, x, y, thin: column.members.length > MOST_LINES || several });
      });
    });
    this.chart.xText = this.over === "step" ? count : duration;
    this.chart.set({ lines, bands }, { log: this.log, xLabel: this.over === "step" ? "step" : "after" });
    this.chart.canvas.setAttribute("aria-label", `${this.figure?.label ?? "nothing"} over ${this.over === "step" ? "steps" : "time"}. Arrow keys read values, plus zooms in, Escape shows all.`);
    const keys = this.runs.length > 1 ? this.runs.map((run, i) => [run.name, nameColour(i)]) : lines.length > 1 && lines.length <= MOST_LINES ? lines.map((line) => [line.name, line.colour]) : [];
    fill(this.keys, keys.map(([name, colour]) => h("li", null, h("i", { style: { background: colour } }), name)));
    const band = bands.length ? " Band: all members, darker the middle half, line the median." : "";
    this.about.textContent = `${this.figure?.about ? `${this.figure.label}: ${this.figure.about}.` : ""}${band} Drag to zoom, double-click to show all.`;
  }

  /** Download what is shown as CSV, once it has been fetched. */
  async save() {
    await this.loading;
    const { lines, bands } = this.chart.data;
    const columns = [...lines.map((line) => [line.name, line.x, line.y]), ...bands.flatMap((band) => ["min", "q25", "median", "q75", "max"].map((level, i) => [`${band.name} ${level}`, band.x, band.levels[i]]))];
    const xs = [...new Set(columns.flatMap(([, x]) => x))].sort((a, b) => a - b);
    const quoted = (text) => `"${String(text).replaceAll('"', '""').replace(/^[=+@-]/, "'$&")}"`;
    const text = [[this.over, ...columns.map(([name]) => quoted(name))].join(","), ...xs.map((x) => [x, ...columns.map(([, at, y]) => y[at.indexOf(x)] ?? "")].join(","))].join("\n");
    const link = h("a", { href: URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" })), download: `${this.figure.name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

/** Return a table of the settings in which runs differ. */
export function differences(runs) {
  const keys = new Set(runs.flatMap((run) => Object.keys(run.settings)));
  const text = (value) => (typeof value === "number" ? num(value) : typeof value === "string" ? value : JSON.stringify(value));
  const rows = [...keys].filter((key) => key !== "about" && new Set(runs.map((run) => JSON.stringify(run.settings[key]))).size > 1);
  if (!rows.length) return h("p", { class: "soft" }, "All settings are the same.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings that differ" }, h("table", null,
    h("thead", null, h("tr", null, h("th", null, "setting"), runs.map((run) => h("th", null, run.name)))),
    h("tbody", null, rows.map((key) => h("tr", null, h("td", { class: "mono" }, key), runs.map((run) => h("td", { class: "mono" }, key in run.settings ? text(run.settings[key]) : "–")))))));
}
