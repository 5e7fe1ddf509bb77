// Ranks: hosts, heartbeats, rate, bytes exchanged, and where the time goes.

import { bytes, count, duration, fill, h, num, percent, statePill } from "../dom.js";
import { nameColour } from "../colours.js";

const MEANING = { update: "training steps", train: "everything between steps: records, looks, pictures, checkpoints", gather: "fetching neighbours", evaluate: "fitness of neighbours", mutate: "changing learning rates", replace: "replacing cells", mixture: "evolving mixtures" };

export async function mount(root, { source, run }) {
  const place = h("div");
  root.append(place);
  const update = async () => {
    const facts = await source.ranks(run.id);
    if (facts.parts) {
      fill(place, h("section", { class: "card" }, h("h1", null, "Trained in parts"), h("ul", null, facts.parts.map((part) => h("li", null, `${part.run}: ${part.state}, step ${count(part.step)}`))), h("p", null, `Left: ${facts.left.join(", ") || "joining them"}`)));
      return;
    }
    fill(place, h("section", { class: "card", "aria-label": "Ranks" }, h("div", { class: "row" }, h("h1", null, "Ranks of ", run.title), statePill(facts.state)),
      h("dl", { class: "facts" }, [["host", facts.host ?? "–"], ["engine", facts.engine ? `${facts.engine.name} on ${facts.engine.device}, ${facts.engine.threads} ${facts.engine.threads === 1 ? "thread" : "threads"}` : "–"], ["rate", `${num(Math.round(facts.rate))} member-steps/s`], ["last record", facts.heartbeat === null ? "–" : `${duration(facts.heartbeat)} ago`]].map(([key, value]) => h("div", null, h("dt", null, key), h("dd", null, value)))),
      facts.ranks.length ? table(facts.ranks) : h("p", { class: "soft", style: { "margin-top": "14px" } }, `All ${count(facts.members)} members train in one process. Several ranks, started with --ranks, mpiexec or torchrun, are listed here with their heartbeats.`)),
      profile(facts.profile));
  };
  await update();
  const timer = setInterval(() => { if (!document.hidden) update().catch(() => {}); }, 5000);
  return () => clearInterval(timer);
}

function table(ranks) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All ranks", style: { "margin-top": "14px" } }, h("table", null,
    h("thead", null, h("tr", null, ["rank", "host", "state", "members", "step", "rate", "heartbeat", "waits", "sent", "received", "time per step"].map((text, i) => h("th", { class: i > 2 ? "num" : null }, text)))),
    h("tbody", null, ranks.map((rank) => h("tr", null, h("td", null, rank.rank), h("td", null, rank.host), h("td", null, statePill(rank.state)),
      [rank.members.length, count(rank.step), num(Math.round(rank.rate)), `${duration(rank.heartbeat)} ago`, rank.waits > 1 ? duration(rank.waits) : "–", bytes(rank.bytes_sent), bytes(rank.bytes_received), rank.slower > 1.5 ? `${num(rank.slower)} × the others` : "like the others"].map((text) => h("td", { class: "num" }, text)))))));
}

function profile(seconds) {
  const parts = Object.entries(seconds ?? {}).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  if (!whole) return null;
  return h("section", { class: "card", "aria-label": "Time" }, h("h2", null, "Where the time goes"),
    h("div", { class: "bar", style: { height: "16px", display: "flex" }, role: "img", "aria-label": parts.map(([name, value]) => `${name} ${percent(value / whole)}`).join(", ") }, parts.map(([, value], i) => h("i", { style: { width: `${(100 * value) / whole}%`, background: nameColour(i), "border-radius": 0 } }))),
    h("ul", { class: "keys" }, parts.map(([name, value], i) => h("li", null, h("i", { style: { background: nameColour(i) } }), h("b", null, name), ` ${duration(value)} (${percent(value / whole)})`, h("span", { class: "soft" }, MEANING[name] ? ` – ${MEANING[name]}` : "")))));
}
