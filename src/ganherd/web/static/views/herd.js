// The herd of a run: its head, the verdict on it, and the board with all members, which follows a run that trains.

import { remember } from "../address.js";
import { count, duration, fill, h, num, statePill, verdictPill, verdictStyle } from "../dom.js";
import { createBoard } from "../herd_board.js";

export async function mount(root, { source, run, query }) {
  const id = encodeURIComponent(run.id);
  const step = query.has("step") ? Number(query.get("step")) : null;
  const herd = createBoard({
    source, run, step, colour: query.get("colour"), onchange: remember,
    href: (member) => `#/run/${id}/member/${member}${herd.time.follows || herd.time.step === null ? "" : `?step=${herd.time.step}`}`,
  });
  const { time, sprites, history, goTo } = herd;
  let state = run;
  const head = h("section", { class: "card", "aria-label": "Run" });
  const notes = h("section", { class: "card", "aria-label": "Verdict" });
  root.append(head, h("div", { class: "split" }, herd.board, h("aside", { "aria-label": "About the herd" }, notes, herd.alarms, herd.course)), time.element);

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
    const verdict = run.verdict && state.state === "finished" ? h("p", { class: `note ${verdictStyle(run.verdict.word)}` }, h("b", null, run.verdict.word), `: ${run.verdict.reason}${run.verdict.try_next ? `; ${run.verdict.try_next}` : ""}.`) : null;
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
    herd.setState(state);
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
  return () => { stop(); herd.close(); };
}
