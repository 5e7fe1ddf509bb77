// A report: the herd with its slider, curves, sortable tables, a filmstrip, and commands to copy, from what the page embeds.

import { h } from "./dom.js";
import { Curves } from "./curves.js";
import { EmbeddedSource } from "./embedded_source.js";
import { frames } from "./film.js";
import { createBoard } from "./herd_board.js";
import { makeSortable } from "./sortable.js";
import { Sprites } from "./sprites.js";

const runs = JSON.parse(document.getElementById("data").textContent);
const source = new EmbeddedSource(runs);
const facts = runs.map((run) => run.facts);
const LOSSES = ["loss_g", "loss_d", "real", "fake", "lr_g", "lr_d", "cost_train", "cost_held_out", "augment"];

const ENOUGH = 8; // points of a score, of which fewer make no curve to begin with

/** Return the figure that is shown first: a score of checkpoints with enough points, or the variety of samples. */
function firstFigure() {
  const names = facts.flatMap((run) => run.course.map((figure) => figure.name));
  return names.find((name) => runs.some((run) => run.course[name]?.step.length >= ENOUGH)) ?? "spread";
}

/** Place curves of some figures; the place disappears if no run has one of them. */
function placeCurves(place, figures, figure = null) {
  if (!place) return;
  const known = figures.filter((figure, i) => figures.findIndex((other) => other.name === figure.name) === i);
  place.hidden = !known.length;
  if (!known.length) return;
  const curves = new Curves(source, facts, { figures: known, figure, height: 270 });
  place.append(curves.element);
  curves.load();
}

placeCurves(document.getElementById("course-curves"), facts.flatMap((run) => [...run.course, ...run.figures.filter((figure) => !LOSSES.includes(figure.name) && !["rate", "epoch"].includes(figure.name))]), firstFigure());
placeCurves(document.getElementById("loss-curves"), facts.flatMap((run) => run.figures.filter((figure) => LOSSES.includes(figure.name))));

const place = document.getElementById("board");
let herd = null;
if (place && facts[0].sprites?.steps.length) {
  herd = createBoard({ source, run: facts[0], href: (member) => (document.getElementById(`member-${member}`) ? `#member-${member}` : "#members") });
  herd.board.append(herd.time.element);
  place.append(herd.board, herd.alarms);
  herd.time.within = place;
  herd.time.newest.textContent = "Last";
  herd.time.newest.title = "Go to the last step";
  herd.history.update(source, facts[0].id).then(() => herd.goTo(herd.time.step));
}
for (const strip of document.querySelectorAll(".film[data-run]")) {
  const run = facts.find((one) => one.id === strip.dataset.run);
  const show = (step) => { herd.time.go(herd.time.indexOf(step), true); place.scrollIntoView({ block: "nearest" }); };
  if (run?.sprites) strip.append(...frames(new Sprites(source, run), run, herd ? show : null));
}

for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);

for (const command of document.querySelectorAll("[data-copy]")) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy: ${command.textContent}` }, "Copy");
  command.after(button);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command); // the browser refuses: select it instead
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// the section that is read is marked in the navigation
const links = new Map([...document.querySelectorAll("#nav a")].map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) for (const [id, link] of links) id === target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
}, { rootMargin: "-15% 0px -75% 0px" });
for (const id of links.keys()) { const section = document.getElementById(id); if (section) seen.observe(section); }

// paper is white, and has no triangles to open
const changed = () => dispatchEvent(new Event("themechange"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; document.documentElement.dataset.theme = "light"; changed(); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; changed(); });
document.documentElement.dataset.ready = "true";
