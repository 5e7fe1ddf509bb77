// Curves of one run, with others laid over it.

import { remember } from "../address.js";
import { fill, h } from "../dom.js";
import { Curves, differences } from "../curves.js";

export async function mount(root, { source, run, query }) {
  const others = new Map();
  const place = h("section", { class: "card", "aria-label": "Curves" });
  const list = h("section", { class: "card", "aria-label": "Other runs" });
  let curves = null, stop = () => {}, figure = query.get("figure");

  const rebuild = async () => {
    curves?.close();
    stop();
    const runs = [run, ...others.values()];
    curves = new Curves(source, runs, { figure, height: Math.max(260, Math.min(440, innerHeight - 330)) });
    curves.onfigure = (name) => { figure = name; remember({ figure: name }); };
    fill(place, h("div", { class: "row" }, h("h1", { style: { "margin-bottom": "14px" } }, "Curves of ", run.title)), curves.element, runs.length > 1 ? h("div", { style: { "margin-top": "18px" } }, h("h2", null, "Settings that differ"), differences(runs)) : null);
    await curves.load();
    let sizes = null;
    stop = source.follow(runs.map((one) => one.id), (changes) => {
      const now = JSON.stringify(Object.values(changes).map((one) => one.metrics));
      if (sizes !== null && now !== sizes && !curves.zoomed) curves.again();
      sizes = now;
    });
  };

  root.append(place, list);
  await rebuild();
  const runs = (await source.runs()).filter((one) => one.id !== run.id && !one.problem);
  list.hidden = !runs.length;
  fill(list, h("h2", null, "Lay other runs over it"), h("div", { class: "row" }, runs.slice(0, 30).map((other) => {
    const box = h("input", { type: "checkbox", onchange: async () => {
      if (box.checked) others.set(other.id, await source.run(other.id)); else others.delete(other.id);
      await rebuild();
    } });
    return h("label", { class: "check" }, box, other.name);
  })));
  return () => { curves.close(); stop(); };
}

