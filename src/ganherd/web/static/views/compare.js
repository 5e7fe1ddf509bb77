// Compare runs: samples from the same noise next to each other, curves on top of each other, and the settings that differ.

import { choice, debounced, fill, h, num, statePill, verdictPill } from "../dom.js";
import { Curves, differences } from "../curves.js";
import { sampleView } from "../samples.js";

const SCORES = [["fid", "FID"], ["kid", "KID"], ["diversity", "diversity"], ["label_accuracy", "label accuracy"], ["precision", "precision"], ["recall", "recall"], ["modes", "modes"]];

export async function mount(root, { source, words }) {
  const ids = (words[1] ?? "").split(",").filter(Boolean).map(decodeURIComponent).slice(0, 8);
  if (ids.length < 2) throw new Error("Select at least two runs to compare them.");
  const runs = await Promise.all(ids.map((id) => source.run(id)));
  const scores = await Promise.all(ids.map((id) => source.scores(id).catch(() => ({}))));
  const settings = { n: 25, seed: 0, label: "" };
  const places = runs.map(() => h("div", { class: "soft small" }, "Drawing…"));
  let turn = 0;
  const draw = async () => {
    const own = ++turn;
    for (const [i, run] of runs.entries()) {
      try {
        const answer = await source.samples(run.id, settings);
        if (own !== turn) return;
        fill(places[i], sampleView(answer, `samples of ${run.name}, seed ${settings.seed}`, 420));
      } catch (error) {
        if (own !== turn) return;
        fill(places[i], error.message);
      }
    }
  };
  const later = debounced(draw, 150);
  const labels = runs[0].labels.filter(Boolean);
  const shared = [...new Set(labels)].filter((label) => runs.every((run) => run.labels.includes(label)));
  const seed = h("input", { type: "number", min: 0, max: 2147483647, value: 0, oninput: () => { if (seed.value !== "" && seed.checkValidity()) { settings.seed = Number(seed.value); later(); } } });
  const curves = new Curves(source, runs, { height: 320 });
  const rows = SCORES.filter(([key]) => scores.some((one) => typeof one.scores?.[key]?.value === "number"));
  root.append(
    h("section", { class: "card", "aria-label": "Samples" }, h("h1", null, "Compare"),
      h("form", { class: "form", style: { margin: "12px 0 16px", "max-width": "460px" }, onsubmit: (event) => event.preventDefault() }, h("label", { class: "field" }, "Seed of the noise", seed), shared.length ? h("label", { class: "field" }, "Label", choice([["", "all"], ...shared.map((label) => [label, label])], "", (label) => { settings.label = label; later(); })) : null),
      h("div", { class: "grid2", style: { "grid-template-columns": `repeat(auto-fit,minmax(min(100%,${runs.length > 2 ? 260 : 380}px),1fr))` } }, runs.map((run, i) => h("div", null, h("div", { class: "row", style: { gap: "8px", "margin-bottom": "8px" } }, h("h2", { style: { margin: 0 } }, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name)), statePill(run.state), verdictPill(run.verdict?.word)), places[i]))),
      h("p", { class: "small soft", style: { margin: "12px 0 0" } }, "Nets with the same noise see the same numbers in the same place.")),
    h("section", { class: "card", "aria-label": "Curves" }, h("h2", null, "Curves"), curves.element),
    rows.length ? h("section", { class: "card", "aria-label": "Scores" }, h("h2", null, "Scores"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scores of all runs" }, h("table", null, h("thead", null, h("tr", null, h("th", null, "score"), runs.map((run) => h("th", { class: "num" }, run.name)))), h("tbody", null, rows.map(([key, text]) => h("tr", null, h("th", { scope: "row" }, text), scores.map((one) => h("td", { class: "num" }, num(one.scores?.[key]?.value), scoreRange(one.scores?.[key]))))))))) : "",
    h("section", { class: "card", "aria-label": "Settings" }, h("h2", null, "Settings that differ"), differences(runs)));
  curves.load();
  draw();
  return () => curves.close();
}

const scoreRange = (score) => (score?.interval ? h("span", { class: "soft small" }, ` ${num(score.interval.low)} to ${num(score.interval.high)}`) : null);
