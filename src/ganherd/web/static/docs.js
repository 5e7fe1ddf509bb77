// The HTTP API, from its OpenAPI description.

import { fill, h } from "./dom.js";

const schema = await (await fetch("/openapi.json")).json();
const typeOf = (one) => {
  const own = one.schema ?? {};
  const plain = own.anyOf ? own.anyOf.find((each) => each.type !== "null") ?? {} : own;
  const limits = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["maxLength", "length ≤"]].filter(([key]) => key in plain).map(([key, sign]) => `${sign} ${plain[key]}`);
  const kind = plain.enum ? plain.enum.join(" | ") : plain.type ?? "any";
  return [kind, ...limits].join(", ");
};
const sections = Object.entries(schema.paths).map(([path, methods]) => Object.entries(methods).map(([method, call]) => h("section", { class: "card", "aria-label": path },
  h("h2", { class: "mono", style: { "font-size": "1rem" } }, `${method.toUpperCase()} ${path}`),
  h("p", null, call.description ?? ""),
  call.parameters?.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Parameters of ${path}` }, h("table", null, h("thead", null, h("tr", null, ["parameter", "type", "default", "meaning"].map((text) => h("th", null, text)))),
    h("tbody", null, call.parameters.filter((one) => one.in !== "header").map((one) => h("tr", null, h("td", { class: "mono" }, one.name, one.required ? " *" : ""), h("td", null, typeOf(one)), h("td", null, one.schema?.default === undefined ? "" : String(one.schema.default)), h("td", null, one.description ?? one.schema?.description ?? "")))))) : null)));
fill(document.getElementById("main"), h("h1", null, `${schema.info.title} ${schema.info.version}: HTTP API`), h("p", { class: "soft", style: { margin: "6px 0 18px" } }, `${schema.info.description} Mistakes in parameters are answered with status 422 and a sentence in “detail”.`), sections);
