// The herd: every member a tile with its samples at the chosen step, coloured by a figure.

import { remember } from "../address.js";
import { choice, count, duration, figureText, fill, h, num, resizeCanvas, statePill, verdictPill } from "../dom.js";
import { Chart } from "../chart.js";
import { drawLegend, nameColour, scaleOf } from "../colours.js";
import { History } from "../history.js";
import { Sprites, drawMember } from "../sprites.js";
import { TimeBar } from "../timebar.js";
import { Wall } from "../wall.js";

const ALARM = "#c43d4d";
const COURSE_EVERY = 10_000; // milliseconds between two readings of the course of a run that trains

export async function mount(root, { source, run, query }) {
  const id = encodeURIComponent(run.id);
  const sprites = new Sprites(source, run);
  const history = new History(run.members);
  const isTorus = run.layout.kind === "torus", isGap = run.layout.kind === "gap";
  const figures = run.figures.filter((figure) => !["epoch", "rate"].includes(figure.name));
  const extra = [["age", { name: "age", label: "age", about: "steps since it was repaired or replaced" }]];
  const rates = run.settings["optim.lr_g"];
  if (rates !== undefined && !figures.some((figure) => figure.name === "lr_g")) extra.push(["rate", { name: "rate", label: "learning rate G", about: "learning rate of the generator, from the recipe and its repairs" }]);
  if (isTorus) extra.unshift(["genes", { name: "genes", label: "genes", about: "the cell from which its generator descends" }]);
  if (isGap) extra.unshift(["partner", { name: "partner", label: "discriminator", about: "whose discriminator it has" }]);
  const byName = new Map([...figures.map((figure) => [figure.name, figure]), ...extra]);
  let chosen = byName.has(query.get("colour")) ? query.get("colour") : isTorus ? "genes" : isGap ? "partner" : figures[0]?.name ?? "age";
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
    run, sprites,
    href: (member) => `#/run/${id}/member/${member}${time.follows || time.step === null ? "" : `?step=${time.step}`}`,
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

  // the frame
  const head = h("section", { class: "card", "aria-label": "Run" });
  const notes = h("section", { class: "card", "aria-label": "Verdict" });
  const legend = h("div", { class: "legend" });
  const about = h("p", { class: "small soft", style: { margin: "10px 0 0" } });
  const picker = choice([...byName].map(([key, figure]) => [key, figure.label]), chosen, (key) => { chosen = key; remember({ colour: key }); recolour(); }, { id: "colour" });
  const alarms = h("section", { class: "card", "aria-label": "Alarms", hidden: true });
  const trend = new Chart({ height: 170, label: "The chosen figure over steps" });
  const course = h("section", { class: "card", "aria-label": "Course", hidden: true }, h("h3"), trend.element);
  const time = new TimeBar(sprites.steps, query.has("step") ? Number(query.get("step")) : null, (step, isLast) => {
    remember({ step: isLast ? null : step });
    return goTo(step);
  });
  const board = h("section", { class: "card", "aria-label": "Herd" },
    h("div", { class: "row end", style: { "margin-bottom": "14px" } },
      h("h2", { style: { margin: 0 } }, isTorus ? `${run.layout.rows} × ${run.layout.columns} cells on a torus` : isGap ? `${count(run.members)} members that swap discriminators` : run.labels.some(Boolean) ? "One member for each class" : `${count(run.members)} ${run.members === 1 ? "member" : "members"}`),
      h("div", { class: "row" }, legend, h("label", { class: "row", for: "colour", style: { gap: "7px" } }, h("span", { class: "small soft" }, "Colour by"), picker))),
    wall.element, about);
  root.append(head, h("div", { class: "split" }, board, h("aside", { "aria-label": "About the herd" }, notes, alarms, course)), time.element);

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
      h("li", null, h("span", { class: "at" }, `since ${count(Math.min(...[...map.values()].map((event) => event.step)))}`), h("span", null, h("a", { href: `#/run/${id}/member/${member}` }, name(member)), `: ${[...map.keys()].map((what) => what.replaceAll("_", " ")).join(", ")}`)))), active.length > 8 ? h("p", { class: "small soft", style: { margin: "8px 0 0" } }, `and ${active.length - 8} more`) : "");
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

  function showHead() {
    const running = state.state === "running" || state.state === "restarting";
    const part = state.steps ? Math.min(1, state.step / state.steps) : 0;
    const facts = [["step", running && state.steps ? `${count(state.step)} of ${count(state.steps)}` : count(state.step)], ["members", count(run.members)]];
    if (run.replicas > 1) facts.push(["replicas", count(run.replicas)]);
    if (running && typeof state.seconds_left === "number") facts.push(["time left", duration(state.seconds_left)]);
    if (typeof state.seconds === "number") facts.push(["trained for", duration(state.seconds)]);
    if (state.rate) facts.push(["member-steps/s", num(Math.round(state.rate))]);
    if (run.engine) facts.push(["engine", `${run.engine.name}, ${run.engine.device}`]);
    fill(head,
      h("div", { class: "head" },
        h("div", null,
          h("div", { class: "row" }, h("h1", null, run.title), statePill(state.state), state.state === "finished" ? verdictPill(run.verdict?.word) : null, h("span", { class: "soft small mono" }, run.name === run.title ? "" : run.name)),
          run.about ? h("p", { class: "soft", style: { margin: "5px 0 0" } }, run.about) : null,
          run.changes?.length ? h("div", { class: "chips", style: { margin: "8px 0 0" } }, h("span", { class: "small soft" }, "changed:"), run.changes.map((change) => h("span", { class: "chip", title: change }, change))) : null),
        h("dl", { class: "facts" }, facts.map(([key, value]) => h("div", { class: ["engine", "member-steps/s"].includes(key) ? "extra" : null }, h("dt", null, key), h("dd", null, value))))),
      running ? h("div", { class: "bar", style: { "margin-top": "12px" }, role: "progressbar", "aria-label": "Progress", "aria-valuenow": Math.round(100 * part), "aria-valuemin": 0, "aria-valuemax": 100 }, h("i", { style: { width: `${100 * part}%` } })) : null);
    const verdict = run.verdict && state.state === "finished" ? h("p", { class: `note ${run.verdict.word === "good" ? "good" : "bad"}` }, h("b", null, run.verdict.word), `: ${run.verdict.reason}${run.verdict.try_next ? `; ${run.verdict.try_next}` : ""}.`) : null;
    const ended = ["killed", "interrupted", "failed", "unknown"].includes(state.state) ? h("p", { class: "note bad" }, state.state === "unknown" ? "It is not known whether this run is still training. If it is not, resume it with " : "This run ended before its last step. Resume it with ", h("span", { class: "mono" }, run.resume)) : null;
    const bare = !sprites.steps.length ? h("p", { class: "note" }, run.sprites ? "The first samples are being drawn." : "This run has no sprites: it was trained with run.sprites 0 or by an older version. Its numbers are all here.") : null;
    notes.hidden = !(run.problem || ended || verdict || bare);
    fill(notes, run.problem ? h("p", { class: "note bad" }, run.problem) : null, ended, verdict, bare);
  }

  showHead();
  await history.update(source, run.id).catch(() => {});
  goTo(time.step);
  let sheets = sprites.steps.length, seen = null;
  const stop = source.follow([run.id], async (changes) => {
    const now = changes[run.id];
    if (!now) return;
    const ended = state.state === "running" && now.state !== "running";
    state = { ...state, ...now };
    if (ended || (seen !== null && now.scores !== seen.scores)) Object.assign(run, await source.run(run.id).catch(() => ({})));
    showHead();
    if (seen !== null && now.events !== seen.events) await history.update(source, run.id).catch(() => {});
    if (now.sprites[0] !== sheets || now.sprites[1] !== sprites.last) {
      sheets = now.sprites[0];
      if (!sprites.facts) Object.assign(run, await source.run(run.id).catch(() => ({}))); // names and labels come with the first sheet
      if (await sprites.refresh(now.sprites)) {
        time.update(sprites.steps);
        showHead();
      }
    } else if (seen !== null && now.metrics !== seen.metrics && time.follows) goTo(time.step);
    seen = now;
  });
  return () => { stop(); time.close(); wall.close(); trend.close(); };
}
