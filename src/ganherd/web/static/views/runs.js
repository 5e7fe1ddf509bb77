// The list of runs: state, picture, verdict, time left; choose several to compare them.

import { count, duration, fill, h, num, resizeCanvas, statePill, themeColour, verdictPill } from "../dom.js";
import { Sprites } from "../sprites.js";

export async function mount(root, { source }) {
  const chosen = new Set();
  const list = h("div", { class: "runs", role: "list" });
  const tray = h("div", { class: "tray", hidden: true });
  const head = h("div", { class: "row end", style: { margin: "0 0 16px" } }, h("h1", null, "Runs"), h("span", { class: "soft small" }, ""));
  root.append(head, list, tray);
  const cards = new Map();

  const showTray = () => {
    tray.hidden = chosen.size < 1;
    const ids = [...chosen].map(encodeURIComponent).join(",");
    fill(tray, `${chosen.size} selected`, chosen.size > 1 ? h("a", { class: "button primary", href: `#/compare/${ids}` }, "Compare") : h("span", { class: "small" }, "select one more to compare"));
  };

  const update = async () => {
    const runs = await source.runs();
    head.lastChild.textContent = runs.length ? `${count(runs.length)} in all` : "";
    if (!runs.length) {
      fill(list, h("div", { class: "card empty", style: { "grid-column": "1/-1" } }, h("h2", null, "No runs yet"), h("p", null, "Runs appear here by themselves as soon as one is started:"), h("p", null, h("code", null, "ganherd train"))));
      cards.clear();
      return;
    }
    const known = new Set(runs.map((run) => run.id));
    for (const [id, card] of cards) if (!known.has(id)) { card.element.remove(); cards.delete(id); }
    if (list.querySelector(".empty")) list.replaceChildren();
    for (const run of runs) {
      if (!cards.has(run.id)) cards.set(run.id, newCard(source, run, chosen, showTray));
      cards.get(run.id).update(run);
      list.append(cards.get(run.id).element);
    }
  };
  await update();
  const timer = setInterval(() => { if (!document.hidden && !list.contains(document.activeElement)) update().catch(() => {}); }, 5000);
  const stop = source.follow([], () => update().catch(() => {}));
  return () => { clearInterval(timer); stop(); };
}

function newCard(source, run, chosen, onchoose) {
  const picture = h("div", { class: "pic" });
  const body = h("div", { class: "body" });
  const box = h("input", { type: "checkbox", onchange: () => { box.checked ? chosen.add(run.id) : chosen.delete(run.id); onchoose(); } });
  const pick = h("label", { class: "check pick" }, box, "compare", h("span", { class: "hidden" }, ` ${run.name}`));
  const element = h("article", { class: "card run", role: "listitem" }, picture, run.problem ? null : pick, body);
  let drawn = null;
  const update = (facts) => {
    fill(body, ...describe(facts));
    const version = `${facts.step}`;
    if (facts.problem) fill(picture, "not readable");
    else if (drawn !== version) {
      drawn = version;
      drawPicture(source, facts, picture);
    }
  };
  return { element, update };
}

function describe(run) {
  const title = h("h2", null, run.problem ? run.name : h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name));
  if (run.problem) return [title, statePill("problem"), h("p", { class: "small soft" }, run.problem)];
  const running = run.state === "running" || run.state === "restarting";
  const part = run.steps ? Math.min(1, run.step / run.steps) : 0;
  return [
    title,
    h("div", { class: "row", style: { gap: "6px" } }, statePill(run.state), run.state === "finished" ? verdictPill(run.verdict) : null),
    running ? h("div", { class: "bar", role: "progressbar", "aria-label": "Progress", "aria-valuenow": Math.round(100 * part), "aria-valuemin": 0, "aria-valuemax": 100 }, h("i", { style: { width: `${100 * part}%` } })) : null,
    h("div", { class: "small soft" }, running
      ? `step ${count(run.step)} of ${count(run.steps)}${typeof run.seconds_left === "number" ? ` · ${duration(run.seconds_left)} left` : ""}`
      : `step ${count(run.step)}${run.steps > run.step ? ` of ${count(run.steps)}` : ""}${typeof run.fid === "number" ? ` · FID ${num(run.fid)}` : ""}`),
    run.recipe && run.recipe !== run.name ? h("div", { class: "small soft" }, run.recipe) : null,
    run.changes?.length ? h("div", { class: "chips" }, run.changes.slice(0, 4).map((change) => h("span", { class: "chip" }, change))) : null,
  ];
}

async function drawPicture(source, run, place) {
  try {
    if (!run.sprites) throw new Error("no sprites yet");
    const facts = await source.sprites(run.id);
    const sprites = new Sprites(source, { id: run.id, sprites: facts });
    const sheet = await sprites.sheet(sprites.last);
    const canvas = h("canvas", { role: "img", "aria-label": `samples of ${run.name}` });
    const width = 340, height = 132;
    const pen = resizeCanvas(canvas, width, height);
    canvas.style.cssText = "";
    pen.fillStyle = themeColour("tile");
    pen.fillRect(0, 0, width, height);
    const rows = facts.members > 5 ? (facts.members > 24 ? 3 : 2) : 1;
    const size = height / rows, columns = Math.ceil(width / size);
    for (let i = 0; i < rows * columns; i += 1) {
      const member = i % facts.members;
      const across = sprites.side, pass = Math.floor(i / facts.members) % (across * across);
      const x = (i % columns) * size, y = Math.floor(i / columns) * size;
      if (facts.kind === "points") { if (i < facts.members) sprites.draw(pen, sheet, member, x + 3, y + 3, size - 6, size - 6); } else drawOne(pen, sprites, sheet, member, pass, x, y, size);
    }
    fill(place, canvas);
    sheet.close?.();
  } catch {
    if (run.picture) {
      const image = h("img", { src: source.pictureUrl(run.id), alt: `samples of ${run.name}`, loading: "lazy" });
      image.addEventListener("error", () => fill(place, "no picture yet"));
      fill(place, image);
    } else fill(place, "no picture yet");
  }
}

/** Draw one sample of a member. */
function drawOne(pen, sprites, sheet, member, sample, x, y, size) {
  const { tile: [tall, wide], columns } = sprites.facts, side = sprites.side;
  const left = ((member % columns) * side + (sample % side)) * wide, top = (Math.floor(member / columns) * side + Math.floor(sample / side)) * tall;
  pen.imageSmoothingEnabled = size / wide < 2.5;
  pen.drawImage(sheet, left, top, wide, tall, x, y, size - 1, size - 1);
}
