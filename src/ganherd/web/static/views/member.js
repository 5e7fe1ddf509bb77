// One member: its samples over time, its curves within the herd, where its nets come from, and why it failed.

import { remember } from "../address.js";
import { count, figureText, fill, h, resizeCanvas, verdictPill, verdictStyle } from "../dom.js";
import { Chart } from "../chart.js";
import { nameColour } from "../colours.js";
import { History, sentenceOf } from "../history.js";
import { Sprites, drawMember } from "../sprites.js";
import { TimeBar } from "../timebar.js";

const MOST_EVENTS = 12; // that are listed at once
const SHOWN = ["spread", "differs", "loss_g", "loss_d", "tells", "lr_g"];

export async function mount(root, { source, run, words, query }) {
  const member = Number(words[3]);
  if (!Number.isInteger(member) || member < 0 || member >= run.members) throw new Error(`This run has the members 0 to ${run.members - 1}.`);
  const id = encodeURIComponent(run.id), name = (m) => run.names[m] ?? `member ${m}`;
  const sprites = new Sprites(source, run), history = new History(run.members);
  const verdict = run.verdict?.members?.find((one) => one.member === member % Math.round(run.members / run.replicas) && (one.replica ?? 0) === Math.floor(member / Math.round(run.members / run.replicas)));
  const big = h("canvas", { role: "img", "aria-label": `samples of ${name(member)}` });
  const size = Math.min(300, innerWidth - 60), pen = resizeCanvas(big, size, size);
  big.style.setProperty("border-radius", "10px");
  const numbers = h("div");
  const film = h("div", { class: "film", role: "group", "aria-label": "Samples over time" });
  const story = h("section", { class: "card", "aria-label": "Events" });
  const lineage = h("section", { class: "card", "aria-label": "Lineage", hidden: true });
  const charts = h("div", { class: "grid2", style: { "margin-bottom": "16px" } });
  const step = (to) => `#/run/${id}/member/${to}${time.follows ? "" : `?step=${time.step}`}`;
  const time = new TimeBar(sprites.steps, query.has("step") ? Number(query.get("step")) : null, (now, isLast) => { remember({ step: isLast ? null : now }); goTo(now); });

  root.append(
    h("section", { class: "card", "aria-label": "Member" },
      h("div", { class: "row end", style: { "margin-bottom": "14px" } },
        h("div", { class: "row" }, h("h1", null, name(member)), verdictPill(verdict?.word), h("a", { class: "small", href: `#/run/${id}` }, `in ${run.title}`)),
        h("div", { class: "row" }, member > 0 ? h("a", { class: "button", href: `#/run/${id}/member/${member - 1}` }, "‹ previous") : null, member < run.members - 1 ? h("a", { class: "button", href: `#/run/${id}/member/${member + 1}` }, "next ›") : null)),
      verdict && verdict.word !== "good" ? h("p", { class: `note ${verdictStyle(verdict.word)}` }, `${verdict.reason}${verdict.try_next ? `; ${verdict.try_next}` : ""}.`) : null,
      h("div", { class: "row", style: { "align-items": "start", gap: "26px" } }, sprites.last === null ? null : big, numbers)),
    sprites.steps.length > 1 ? h("section", { class: "card", "aria-label": "Film" }, h("h2", null, "Samples over time"), film) : "",
    charts, lineage, story, time.element);

  const few = sprites.steps.filter((_, i, all) => i % Math.max(1, Math.ceil(all.length / 16)) === 0 || i === all.length - 1);
  const frames = few.map((at) => {
    const canvas = h("canvas");
    return h("button", { type: "button", "data-step": at, "aria-label": `step ${at}`, onclick: () => time.go(sprites.steps.indexOf(at), true) }, drawMember(sprites, canvas, resizeCanvas(canvas, 84, 84), member, at, 84), count(at));
  });
  fill(film, frames);

  const figures = run.figures.filter((figure) => SHOWN.includes(figure.name)).sort((a, b) => SHOWN.indexOf(a.name) - SHOWN.indexOf(b.name));
  const drawn = figures.slice(0, 4).map((figure) => ({ figure, chart: new Chart({ height: 190, label: `${figure.label} of ${name(member)} over steps`, yText: (value) => figureText(figure, value) }) }));
  fill(charts, drawn.map(({ figure, chart }) => h("section", { class: "card", "aria-label": figure.label }, h("h3", null, figure.label, h("span", { class: "soft small", style: { "font-weight": 400 } }, figure.about ? ` – ${figure.about}` : "")), chart.element)));

  async function loadCharts() {
    if (!drawn.length) return;
    const names = drawn.map(({ figure }) => figure.name).join(",");
    const [own, all] = await Promise.all([source.metrics(run.id, { figures: names, members: member, points: 300 }), source.metrics(run.id, { figures: names, points: 120 })]);
    for (const { figure, chart } of drawn) {
      const line = own.figures[figure.name], band = all.figures[figure.name];
      if (!line?.lines) continue;
      chart.set({ lines: [{ name: name(member), colour: nameColour(0), x: own.step, y: line.lines[0] }], bands: band?.band && run.members > 1 ? [{ name: "all members", colour: "#8b93a1", x: all.step, levels: band.band }] : [] }, { mark: time.step });
    }
  }

  async function loadStory() {
    await history.update(source, run.id);
    const { events, damaged } = await source.events(run.id, { member, limit: 5000, newest: true });
    let won;
    for (const event of events) {
      if (event.event === "tournament") won = event.g;
      else if (event.event === "replacement") event.won = won;
    }
    const told = events.filter((event) => !["tournament", "mixture"].includes(event.event)).reverse();
    const rest = told.splice(MOST_EVENTS);
    fill(story, h("h2", null, "What happened"), damaged ? h("p", { class: "note bad" }, `${count(damaged)} events are damaged and left out.`) : null,
      told.length ? h("ul", { class: "events" }, told.map(line)) : h("p", { class: "soft" }, "Nothing out of the ordinary."),
      rest.length ? h("details", null, h("summary", { class: "small" }, `${count(rest.length)} earlier ones`), h("ul", { class: "events" }, rest.slice(0, 500).map(line))) : null);
  }

  function line(event) {
    const [text, pictured] = sentenceOf(event, member, name);
    return h("li", null, h("span", { class: "at" }, `step ${count(event.step)}`), h("div", null, text, pictured && sprites.steps.length > 1 ? beforeAfter(event.step) : null));
  }

  function beforeAfter(at) {
    const i = sprites.steps.findIndex((each) => each >= at);
    const before = sprites.steps[Math.max(0, (i < 0 ? sprites.steps.length : i) - 1)], after = i < 0 ? sprites.last : sprites.steps[Math.min(sprites.steps.length - 1, sprites.steps[i] === at ? i + 1 : i)];
    const picture = (when) => { const canvas = h("canvas"); return h("figure", null, drawMember(sprites, canvas, resizeCanvas(canvas, 96, 96), member, when, 96), h("figcaption", null, `step ${count(when)}`)); };
    return h("div", { class: "ba" }, picture(before), "→", picture(after));
  }

  function showLineage(at) {
    if (run.layout.kind === "gap") {
      const swaps = history.events.filter((event) => event.event === "swap" && event.step <= at);
      lineage.hidden = !swaps.length;
      let partner = Array.from({ length: run.members }, (_, i) => i);
      const seen = [[0, member]];
      for (const event of swaps) {
        for (const [a, b] of event.pairs ?? []) [partner[a], partner[b]] = [partner[b], partner[a]];
        if (seen[seen.length - 1][1] !== partner[member]) seen.push([event.step, partner[member]]);
      }
      fill(lineage, h("h2", null, "Discriminators it has met"), h("div", { class: "chips" }, seen.slice(-40).map(([from, which]) => h("span", { class: "pill plain", style: { background: nameColour(which), color: "#fff" } }, `D ${which} from step ${count(from)}`))));
      return;
    }
    const chain = history.ancestors(member, at).slice(0, 14);
    lineage.hidden = run.layout.kind !== "torus";
    if (lineage.hidden) return;
    fill(lineage, h("h2", null, "Where its generator comes from"), chain.length < 2 ? h("p", { class: "soft" }, "It never took a generator of a neighbour.") : h("div", { class: "lineage" }, chain.reverse().map((one, i) => {
      const canvas = h("canvas"), saved = sprites.nearest(one.step);
      return [i ? "→" : "", h("figure", null, saved === null ? null : drawMember(sprites, canvas, resizeCanvas(canvas, 72, 72), one.member, saved, 72), h("figcaption", null, h("a", { href: step(one.member) }, `member ${one.member}`), h("br"), i === chain.length - 1 ? `step ${count(at)}` : `until ${count(one.step)}`))];
    })));
  }

  async function goTo(now) {
    if (now !== null) drawMember(sprites, big, pen, member, now, size);
    for (const frame of frames) frame.setAttribute("aria-current", String(Number(frame.dataset.step) === few.filter((at) => at <= (now ?? 0)).at(-1)));
    for (const { chart } of drawn) { chart.mark = now; chart.draw(); }
    showLineage(now ?? run.step);
    const record = await source.record(run.id, { step: now ?? run.step, figures: run.figures.map((figure) => figure.name).join(","), members: member }).catch(() => null);
    if (!record || time.step !== now) return;
    const state = history.at(now ?? run.step), active = [...(state.alarms[member]?.keys() ?? [])];
    const rows = run.figures.filter((figure) => Array.isArray(record.figures[figure.name])).map((figure) => h("tr", null, h("th", { scope: "row" }, figure.label), h("td", { class: "num" }, figureText(figure, record.figures[figure.name][0])), h("td", { class: "soft small" }, figure.about)));
    fill(numbers, active.length ? h("p", { class: "note bad" }, `Alarm: ${active.map((what) => what.replaceAll("_", " ")).join(", ")}`) : null, h("table", { class: "numbers" }, h("tbody", null, rows)));
  }

  await Promise.all([loadCharts(), loadStory()].map((work) => work.catch(() => {})));
  goTo(time.step);
  let seen = null;
  const stop = source.follow([run.id], async (changes) => {
    const now = changes[run.id];
    if (!now) return;
    if (seen !== null && now.metrics !== seen.metrics) loadCharts().catch(() => {});
    if (seen !== null && now.events !== seen.events) loadStory().catch(() => {});
    if (now.sprites[1] !== sprites.last) {
      if (await sprites.refresh(now.sprites)) time.update(sprites.steps);
    }
    seen = now;
  });
  return () => { stop(); time.close(); for (const { chart } of drawn) chart.close(); };
}
