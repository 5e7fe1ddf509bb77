// The frame of the page: addresses, navigation, theme, and the live state of the run that is shown.

import { place } from "./address.js";
import { fill, h } from "./dom.js";
import { ServerSource } from "./source.js";

const source = new ServerSource();
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const VIEWS = [["", "Herd"], ["curves", "Curves"], ["sample", "Sample"], ["ranks", "Ranks"]];
let leave = () => {};
let visit = 0;

function navigation(run, view) {
  const items = [h("a", { href: "#/", "aria-current": run || view === "compare" ? null : "page" }, "Runs")];
  if (run) {
    items.push(h("span", { class: "crumb", "aria-hidden": "true" }, "›"));
    for (const [key, text] of VIEWS) {
      const current = key === view || (key === "" && view === "member");
      items.push(h("a", { href: `#/run/${encodeURIComponent(run)}${key ? `/${key}` : ""}`, "aria-current": current ? "page" : null }, text));
    }
  }
  if (view === "compare") items.push(h("a", { href: location.hash, "aria-current": "page" }, "Compare"));
  fill(nav, items);
}

async function show() {
  const own = ++visit;
  const { words, query } = place();
  leave();
  leave = () => {};
  const [kind, run, view = ""] = words;
  navigation(kind === "run" ? run : null, kind === "run" ? view : kind ?? "");
  document.body.dataset.view = kind === "run" ? view || "herd" : kind ?? "runs";
  try {
    if (kind === "latest") {
      const runs = await source.runs();
      if (runs.length) return location.replace(`#/run/${encodeURIComponent(runs[0].id)}`);
      return location.replace("#/");
    }
    const name = kind === "run" ? (view === "" ? "herd" : VIEWS.some(([key]) => key === view) || view === "member" ? view : null) : kind === "compare" ? "compare" : kind === undefined ? "runs" : null;
    if (name === null) throw new Error("There is no such page.");
    const [module, facts] = await Promise.all([import(`./views/${name}.js`), kind === "run" ? source.run(run) : null]);
    if (own !== visit) return;
    document.title = facts ? `${facts.title} · ganherd` : "ganherd";
    main.replaceChildren();
    leave = (await module.mount(main, { source, run: facts, words, query })) ?? (() => {});
    if (own !== visit) leave();
  } catch (error) {
    if (own !== visit) return;
    fill(main, h("div", { class: "card empty", role: "alert" }, h("h1", null, "This cannot be shown"), h("p", null, error.message), h("p", null, h("a", { class: "button", href: "#/" }, "All runs"))));
  }
}

// the theme of the system, until somebody chooses another one
const THEME = "ganherd-theme";
try {
  const chosen = localStorage.getItem(THEME);
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* a private window */ }
document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem(THEME, next); } catch { /* a private window */ }
  dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
addEventListener("hashchange", () => { show(); window.scrollTo(0, 0); });
show();
