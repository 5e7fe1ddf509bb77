// Play with the mixture: labels, seed, number, truncation; a walk between two noises; downloads.

import { choice, count, debounced, fill, h } from "../dom.js";
import { WalkPlayer, sampleView } from "../samples.js";

export async function mount(root, { source, run }) {
  const title = h("h1", { style: { "margin-bottom": "4px" } }, "Sample ", run.title);
  const status = h("p", { class: "soft small", role: "status" }, "Loading the mixture… The first time takes a few seconds.");
  const card = h("section", { class: "card", "aria-label": "Samples" }, title, status);
  const split = h("div", { class: "split" }, card);
  root.append(split);
  let facts;
  try {
    facts = await source.mixture(run.id);
  } catch (error) {
    fill(card, title, h("p", { class: "note", style: { "margin-top": "12px" } }, error.message));
    return () => {};
  }
  const settings = { n: 64, label: "", seed: 0, truncation: 1, replica: 0 };
  const view = h("div", { style: { "margin-top": "16px" } });
  const links = h("div", { class: "row" });
  let turn = 0, walkTurn = 0;
  const player = new WalkPlayer(Math.min(288, innerWidth - 60));
  const ends = { from: 0, to: 1 };

  const draw = async () => {
    const own = ++turn;
    status.textContent = "Drawing…";
    try {
      const answer = await source.samples(run.id, settings);
      if (own !== turn) return;
      fill(view, sampleView(answer, `${settings.n} samples${settings.label ? ` of ${settings.label}` : ""}, seed ${settings.seed}`));
      status.textContent = `${count(settings.n)} samples of ${run.state === "finished" ? "the mixture" : "all members"} at step ${count(answer.step)}. The same seed gives the same samples.`;
    } catch (error) {
      if (own === turn) { status.textContent = error.message; view.replaceChildren(); }
    }
    fill(links, ["png", "npz", facts.kind === "images" ? "zip" : "csv"].map((kind) =>
      h("a", { class: "button", href: source.downloadUrl(run.id, kind, settings), download: `${run.id}-samples.${kind}` }, { png: "PNG", npz: "npz", csv: "csv", zip: "zip by label" }[kind])));
  };
  const walk = async () => {
    const own = ++walkTurn;
    try {
      const answer = await source.walk(run.id, { seed: ends.from, to_seed: ends.to, label: settings.label, truncation: settings.truncation, replica: settings.replica, frames: 48 });
      if (own === walkTurn) await player.set(answer);
    } catch (error) {
      if (own === walkTurn) status.textContent = error.message;
    }
  };
  const later = debounced(() => { draw(); walk(); }, 150), walkLater = debounced(walk, 150);
  const number = (label, key, props, into = settings, after = later) => {
    const input = h("input", { type: "number", value: into[key], min: 0, ...props, oninput: () => { const value = Number(input.value); if (input.value !== "" && input.checkValidity()) { into[key] = value; after(); } } });
    return [h("label", { class: "field" }, label, input), input];
  };
  const [seedField, seedInput] = number("Seed", "seed", { max: 2147483647 });
  const [countField] = number("Number", "n", { min: 1, max: 400 });
  const shown = h("span", null, "1.00");
  const range = h("input", { type: "range", min: 0.1, max: 1.5, step: 0.05, value: 1, oninput: () => { settings.truncation = Number(range.value); shown.textContent = settings.truncation.toFixed(2); later(); } });
  const another = h("button", { type: "button", class: "primary", onclick: () => { settings.seed = Math.floor(Math.random() * 1e6); seedInput.value = settings.seed; draw(); } }, "Another seed");
  const [fromField] = number("From seed", "from", { max: 2147483647 }, ends, walkLater);
  const [toField, toInput] = number("To seed", "to", { max: 2147483647 }, ends, walkLater);
  fill(card, title, status,
    h("form", { class: "form", onsubmit: (event) => event.preventDefault() },
      facts.labels.length ? h("label", { class: "field" }, "Label", choice([["", "all"], ...facts.labels.map((label) => [label, label])], "", (label) => { settings.label = label; later(); })) : null,
      seedField, countField,
      h("label", { class: "field wide" }, h("span", { class: "caption" }, "Truncation ", shown), range),
      facts.replicas > 1 ? h("label", { class: "field" }, "Replica", choice(Array.from({ length: facts.replicas }, (_, i) => [String(i), String(i + 1)]), "0", (replica) => { settings.replica = Number(replica); later(); })) : null,
      another),
    h("div", { class: "row", style: { "margin-top": "14px" } }, h("span", { class: "soft small" }, "Download"), links), view);
  split.append(h("section", { class: "card", "aria-label": "Walk" }, h("h2", null, "A walk between two noises"), player.element,
    h("form", { class: "form", style: { "margin-top": "12px" }, onsubmit: (event) => event.preventDefault() }, fromField, toField, h("button", { type: "button", onclick: () => { ends.to = Math.floor(Math.random() * 1e6); toInput.value = ends.to; walk(); } }, "Another end"))));
  await draw();
  walk();
  return () => player.stop();
}
