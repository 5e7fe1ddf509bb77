// Elements, numbers and times as text. Nothing here inserts HTML: names of runs and labels may come from strangers.

/** Return a new element. `on…` properties are listeners; `style` is an object; null and false are left out. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

const whole = new Intl.NumberFormat("en");

/** Return a count with separators. */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(Math.round(value)));

/** Return a number with four digits; a dash for one that is unknown or not finite. */
export function num(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return whole.format(value);
  return size >= 1000 ? whole.format(Math.round(value)) : String(Number(value.toPrecision(4)));
}

export const percent = (value) => (typeof value === "number" ? `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : "–");

/** Return the value of a figure as text. */
export const figureText = (figure, value) => (figure?.share ? percent(value) : num(value));

/** Return a duration in its two largest units. */
export function duration(seconds) {
  if (typeof seconds !== "number") return "–";
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  const [large, small, rest] = all < 3600 ? ["min", "s", all] : all < 86400 ? ["h", "min", Math.floor(all / 60)] : ["d", "h", Math.floor(all / 3600)];
  const base = large === "d" ? 24 : 60;
  return `${Math.floor(rest / base)} ${large}${rest % base ? ` ${rest % base} ${small}` : ""}`;
}

export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} GiB`;
}

/** Return a function that runs only after the last of several calls. */
export function debounced(work, wait = 120) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), wait);
  };
}

/** Tell screen readers something. */
export function announce(text) {
  const live = document.getElementById("live");
  if (live && live.textContent !== text) live.textContent = text;
}

/** Return a canvas that is sharp on any screen, and its context, scaled to CSS pixels. */
export function canvasOf(width, height, props) {
  const canvas = h("canvas", props);
  return [canvas, resizeCanvas(canvas, width, height)];
}

export function resizeCanvas(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/** Return a colour of the page's theme. */
export const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const statePill = (state) => h("span", { class: `pill ${state}` }, state);

/** Return the style of a verdict, as in reports: undertrained is no failure yet. */
export const verdictStyle = (word) => ({ good: "good", undertrained: "warn", "cannot be judged": "warn" })[word] ?? "bad";

/** Return a pill for a verdict. */
export const verdictPill = (word) => (word ? h("span", { class: `pill ${verdictStyle(word)}` }, word) : null);

/** Return a choice of options `[value, text]`. */
export function choice(options, value, onchange, props) {
  const select = h("select", { onchange: () => onchange(select.value), ...props }, options.map(([key, text]) => h("option", { value: key }, text)));
  select.value = value;
  return select;
}

/** Return buttons of which one is pressed. */
export function segmented(label, options, value, onchange) {
  const buttons = options.map(([key, text]) =>
    h("button", { type: "button", "aria-pressed": String(key === value), onclick: () => { for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.key === key)); onchange(key); } , "data-key": key }, text));
  return h("div", { class: "seg", role: "group", "aria-label": label }, buttons);
}
