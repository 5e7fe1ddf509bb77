// The board of a herd: every member a tile with its samples at the chosen step, coloured by a figure, with a slider over the steps.

import { choice, count, figureText, fill, h, resizeCanvas } from "./dom.js";
import { Chart } from "./chart.js";
import { drawLegend, nameColour, scaleOf } from "./colours.js";
import { History } from "./history.js";
import { Sprites, drawMember } from "./sprites.js";
import { TimeBar } from "./timebar.js";
import { Wall } from "./wall.js";

const ALARM = "#c43d4d";
const COURSE_EVERY = 10_000; // milliseconds between two readings of the course of a run that trains

/**
 * Return the parts of a board: `board`, `alarms` and `course` to be placed, `time`, `sprites`, `history`, and what moves them.
 * `href(member)` is where a tile leads; `onchange` is called with the step or the colour that somebody chose.
 */
export function createBoard({ source, run, colour = null, step = null, href, onchange = () => {} }) {
  const sprites = new Sprites(source, run);
  const history = new History(run.members);
  const isTorus = run.layout.kind === "torus", isGap = run.layout.kind === "gap";
  const hasGenes = isTorus || Boolean(run.layout.torus_of_class);
  const figures = run.figures.filter((figure) => !["epoch", "rate"].includes(figure.name));
  const extra = [["age", { name: "age", label: "age", about: "steps since it was repaired or replaced" }]];
  const rates = run.settings["optim.lr_g"];
  if (rates !== undefined && !figures.some((figure) => figure.name === "lr_g")) extra.push(["rate", { name: "rate", label: "learning rate G", about: "learning rate of the generator, from the recipe and its repairs" }]);
  if (hasGenes) extra.unshift(["genes", { name: "genes", label: "genes", about: "the cell from which its generator descends" }]);
  if (isGap) extra.unshift(["partner", { name: "partner", label: "discriminator", about: "whose discriminator it has" }]);
  const byName = new Map([...figures.map((figure) => [figure.name, figure]), ...extra]);
  let chosen = byName.has(colour) ? colour : hasGenes ? "genes" : isGap ? "partner" : figures[0]?.name ?? "age";
  let values = [], then = history.at(0), scale = null, state = run, wanted = 0, courseRead = -Infinity;

  const label = (member) => run.labels[member] ?? (isTorus ? `cell ${Math.floor(member / run.layout.population) % (run.layout.rows * run.layout.columns)}` : `${member}`);
  const name = (member) => run.names[member] ?? `member ${member}`;
  const valueText = (member) => {
    if (chosen === "genes") return `from ${then.founder[member]}`;
    if (chosen === "partner") return `D ${then.partner[member]}`;
    return figureText(byName.get(chosen), values[member]);
  };
  const alarmsOf = (member) => [...(then.alarms[member]?.keys() ?? [])].map((what) => what.replaceAll("_", " "));

  const wall = new Wall({
    run, sprites, href,
    describe: (member) => {
      const alarms = alarmsOf(member);
      return { short: label(member), value: valueText(member), full: `${name(member)}, ${byName.get(chosen)?.label ?? ""} ${valueText(member)}${alarms.length ? `, alarm: ${alarms.join(", ")}` : ""}` };
    },
    tip: (member, append) => {
      const parts = [];
      if (sprites.last !== null && time.step !== null) {
        const canvas = h("canvas");
        parts.push(drawMember(sprites, canvas, resizeCanvas(canvas, 150, 150), member, time.step, 150));
      }
      parts.push(h("b", null, name(member)));
      if (isGap) parts.push(h("div", { class: "soft" }, `with the discriminator that began at ${then.partner[member]}`));
      if (isTorus) parts.push(h("div", { class: "soft" }, `its generator descends from member ${then.founder[member]}`));
      const alarms = alarmsOf(member);
      if (alarms.length) parts.push(h("div", { style: { color: "var(--bad)" } }, `alarm: ${alarms.join(", ")}`));
      const step = time.step ?? state.step;
      source.record(run.id, { step, figures: figures.map((figure) => figure.name).join(","), members: member }).then((record) => {
        const rows = figures.filter((figure) => record.figures[figure.name]).map((figure) => h("tr", null, h("td", { class: "soft" }, figure.label), h("td", { class: "num" }, figureText(figure, record.figures[figure.name][0]))));
        append(h("table", null, rows));
      }, () => {});
      return parts;
    },
  });

  const legend = h("div", { class: "legend" });
  const about = h("p", { class: "small soft", style: { margin: "10px 0 0" } });
  const picker = choice([...byName].map(([key, figure]) => [key, figure.label]), chosen, (key) => { chosen = key; onchange({ colour: key }); recolour(); }, { id: "colour" });
  const alarms = h("section", { class: "card", "aria-label": "Alarms", hidden: true });
  const trend = new Chart({ height: 170, label: "The chosen figure over steps" });
  const course = h("section", { class: "card", "aria-label": "Course", hidden: true }, h("h3"), trend.element);
  const time = new TimeBar(sprites.steps, step, (now, isLast) => {
    onchange({ step: isLast ? null : now });
    return goTo(now);
  });
  const board = h("section", { class: "card", "aria-label": "Herd" },
    h("div", { class: "row end", style: { "margin-bottom": "14px" } },
      h("h2", { style: { margin: 0 } }, run.layout.per_class ? classHeading(run.layout) : isTorus ? `${run.layout.rows} × ${run.layout.columns} cells on a torus` : isGap ? `${count(run.members)} members that swap discriminators` : run.labels.some(Boolean) ? "One member for each class" : `${count(run.members)} ${run.members === 1 ? "member" : "members"}`),
      h("div", { class: "row" }, legend, h("label", { class: "row", for: "colour", style: { gap: "7px" } }, h("span", { class: "small soft" }, "Colour by"), picker))),
    wall.element, about);

  async function recolour() {
    const own = ++wanted, figure = byName.get(chosen);
    const step = time.step ?? state.step;
    if (chosen === "rate") values = then.born.map((_, member) => then.rates.get(member) ?? (Array.isArray(rates) ? rates[member % rates.length] : rates));
    else if (chosen === "age") values = then.born.map((born) => Math.max(0, step - born));
    else if (chosen === "genes" || chosen === "partner") values = chosen === "genes" ? then.founder : then.partner;
    else {
      try {
        if (scale?.name !== chosen || (state.state === "running" && performance.now() - scale.read > COURSE_EVERY)) {
          const column = (await showCourse(figure)).figures[chosen];
          if (own !== wanted) return;
          scale = { name: chosen, read: performance.now(), ...scaleOf(figure, (column.band ?? [column.all ?? []]).flat()) };
        }
        const record = await source.record(run.id, { step, figures: chosen });
        if (own !== wanted) return;
        values = record.figures[chosen] ?? [];
      } catch { values = []; }
    }
    if (own !== wanted) return;
    if (!run.figures.includes(figure) && figures.length && (courseRead < 0 || (state.state === "running" && performance.now() - courseRead > COURSE_EVERY))) await showCourse(figures[0]).catch(() => {});
    trend.mark = time.step;
    trend.draw();
    let colours;
    if (chosen === "genes" || chosen === "partner") {
      colours = values.map(nameColour);
      fill(legend, h("span", null, chosen === "genes" ? "one colour for each founder" : "one colour for each discriminator"));
    } else {
      const shades = chosen === "age" ? scaleOf(figure, [0, ...values, 1]) : chosen === "rate" ? scaleOf(figure, values) : scale;
      colours = values.map((value) => shades?.colour(value) ?? null);
      if (shades?.stops) {
        const bar = h("canvas", { "aria-hidden": "true" });
        drawLegend(bar, shades);
        const text = (end) => (typeof end === "number" ? figureText(figure, end) : end);
        fill(legend, text(shades.ends[0]), bar, text(shades.ends[1]));
      } else legend.replaceChildren();
    }
    about.textContent = [figure?.about ? `${figure.label}: ${figure.about}.` : "", overlayText()].filter(Boolean).join(" ");
    wall.set({ colours, badges: badges(), overlay: overlay() });
  }

  async function showCourse(figure) {
    const band = await source.metrics(run.id, { figures: figure.name, points: 60 });
    const column = band.figures[figure.name];
    courseRead = performance.now();
    course.hidden = !band.step.length;
    course.firstChild.textContent = `${figure.label[0].toUpperCase()}${figure.label.slice(1)} over steps`;
    trend.yText = (value) => figureText(figure, value);
    const one = run.members === 1 || column.all;
    trend.set({ lines: one ? [{ name: figure.label, colour: nameColour(0), x: band.step, y: column.all ?? column.band[2] }] : [], bands: one ? [] : [{ name: "median", colour: nameColour(0), x: band.step, levels: column.band }] }, { mark: time.step });
    return band;
  }

  function overlayText() {
    if (isGap) return then.swapped === null ? "No discriminators were swapped yet." : `Arrows: the last swap, at step ${count(then.swapped)}.`;
    return isTorus ? "Arrows: generators that replaced a neighbour's since the saved step before. The edges of the grid meet." : "";
  }

  function badges() {
    return Array.from({ length: run.members }, (_, member) => {
      const alarm = alarmsOf(member);
      if (alarm.length) return { text: alarm[0], colour: ALARM };
      return isGap ? { text: `D ${then.partner[member]}`, colour: nameColour(then.partner[member]) } : null;
    });
  }

  function overlay() {
    if (isGap) return then.pairs.map(([from, to]) => ({ from, to, both: true, colour: "#6b7484" }));
    if (!isTorus || time.step === null) return [];
    const before = sprites.steps[time.index - 1] ?? -1;
    return then.moves.filter(([, , step]) => step > before && step <= time.step).map(([from, to]) => ({ from, to, colour: nameColour(then.founder[to]) }));
  }

  function showAlarms() {
    const active = then.alarms.map((map, member) => [member, map]).filter(([, map]) => map.size);
    alarms.hidden = !active.length;
    if (!active.length) return;
    fill(alarms, h("h2", null, active.length === 1 ? "One member is not well" : `${count(active.length)} members are not well`), h("ul", { class: "events" }, active.slice(0, 8).map(([member, map]) =>
      h("li", null, h("span", { class: "at" }, `since ${count(Math.min(...[...map.values()].map((event) => event.step)))}`), h("span", null, h("a", { href: href(member) }, name(member)), `: ${[...map.keys()].map((what) => what.replaceAll("_", " ")).join(", ")}`)))), active.length > 8 ? h("p", { class: "small soft", style: { margin: "8px 0 0" } }, `and ${active.length - 8} more`) : "");
  }

  async function goTo(step) {
    then = history.at(step ?? state.step);
    const colouring = recolour();
    showAlarms();
    if (step !== null) {
      try {
        const sheet = await sprites.sheet(step);
        if (step === time.step) {
          wall.show(sheet);
          wall.element.dataset.step = step;
        }
        const next = sprites.steps[time.index + 1];
        if (time.playing && next !== undefined) sprites.sheet(next).catch(() => {});
      } catch { /* thinned in the meantime: the next list of steps does not have it */ }
    }
    await colouring;
  }

  return {
    board, alarms, course, time, sprites, history, goTo,
    /** Take the live state of the run. */
    setState(now) { state = now; },
    close() { time.close(); wall.close(); trend.close(); },
  };
}

/** Return the heading of a herd with several members of each class. */
function classHeading({ per_class: perClass, torus_of_class: torus, kind }) {
  const how = torus ? `, on a torus of ${torus[0]} × ${torus[1]} cells` : kind === "gap" ? ", which swap discriminators" : "";
  return `${perClass} members for each class${how}`;
}
