// Controls, the grid of samples and the walk.
const $ = (id) => document.getElementById(id);
const [channels, height, width] = model.image ? model.shape : [1, 360, 360];
const zoom = model.image ? Math.max(1, Math.round(72 / Math.max(height, width))) : 1;
const name = (label) => (label < 0 || !model.labels[label] ? "" : model.labels[label]);
let turn = 0, limits = null, drawn = [];

function picture(x) {
  const image = new ImageData(width, height), plane = height * width;
  for (let i = 0; i < plane; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = x[(channels === 3 ? c : 0) * plane + i];
    image.data[4 * i + 3] = 255;
  }
  return image;
}
function paint(canvas, x, column, row) {
  const small = Object.assign(document.createElement("canvas"), { width, height }), pen = canvas.getContext("2d");
  small.getContext("2d").putImageData(picture(x), 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, column * (width * zoom + 2) + 1, row * (height * zoom + 2) + 1, width * zoom, height * zoom);
}
function dots(canvas, points, large) {
  const pen = canvas.getContext("2d"), half = large ? 5 : 2;
  pen.fillStyle = large ? getComputedStyle(document.querySelector("button.main")).backgroundColor : getComputedStyle(document.body).color;
  const place = (a, axis) => ((a - limits[axis][0]) / (limits[axis][1] - limits[axis][0])) * 0.9 + 0.05;
  for (const p of points) pen.fillRect(place(p[0], 0) * width - half, (1 - place(p[1], 1)) * height - half, 2 * half, 2 * half);
}
function clear(canvas, columns, rows) {
  canvas.width = model.image ? columns * (width * zoom + 2) : width;
  canvas.height = model.image ? rows * (height * zoom + 2) : height;
}

function draw() {
  const label = Number($("label").value), seed = Math.max(0, Math.floor(Number($("seed").value) || 0));
  const count = Math.min(4096, Math.max(1, Math.floor(Number($("count").value) || 1)));
  const columns = Math.min(count, Math.max(1, Math.floor(Math.sqrt(count * (height / width))) || 1)), mine = ++turn, begin = performance.now();
  clear($("grid"), columns, Math.ceil(count / columns));
  $("grid").dataset.columns = columns;
  drawn = [];
  delete document.body.dataset.milliseconds;
  (function some() {
    if (mine !== turn) return;
    const pause = performance.now() + 40;
    while (drawn.length < count && performance.now() < pause) {
      const one = { seed: seed + drawn.length, ...sample(seed + drawn.length, label) };
      if (model.image) paint($("grid"), one.x, drawn.length % columns, Math.floor(drawn.length / columns));
      drawn.push(one);
    }
    const time = performance.now() - begin;
    if (drawn.length < count) {
      $("status").textContent = `${drawn.length} of ${count} samples`;
      return setTimeout(some);
    }
    if (!model.image) {
      limits = [0, 1].map((axis) => [Math.min(...drawn.map((d) => d.x[axis])), Math.max(...drawn.map((d) => d.x[axis])) + 1e-9]);
      dots($("grid"), drawn.map((d) => d.x), false);
    }
    $("status").textContent = `${count} samples, seeds ${seed} to ${seed + count - 1}, drawn in ${Math.round(time)} ms by this page.`;
    document.body.dataset.milliseconds = time.toFixed(1);
    walk();
  })();
}

function between(a, b, t, uniform) {
  // Normal noise is turned along the sphere, so that its length stays usual; uniform noise moves on a line.
  const dot = (p, q) => p.reduce((sum, v, i) => sum + v * q[i], 0);
  const angle = Math.acos(Math.max(-1, Math.min(1, dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b)))));
  const [p, q] = uniform || angle < 1e-3 ? [1 - t, t] : [Math.sin((1 - t) * angle) / Math.sin(angle), Math.sin(t * angle) / Math.sin(angle)];
  return a.map((v, i) => p * v + q * b[i]);
}
function walk() {
  const seed = (id) => Math.max(0, Math.floor(Number($(id).value) || 0)), { member, label } = route(seed("from"), Number($("label").value));
  const x = generate(member, between(noise(seed("from"), member), noise(seed("to"), member), Number($("position").value), model.uniform[member]), label);
  clear($("step"), 1, 1);
  if (model.image) {
    paint($("step"), x, 0, 0);
    $("step").style.width = `${Math.max(192, width)}px`;
  } else {
    dots($("step"), drawn.map((d) => d.x), false);
    dots($("step"), [x], true);
  }
}
let playing = 0, direction = 1;
function play() {
  const slider = $("position"), next = Number(slider.value) + 0.02 * direction;
  if (next >= 1 || next <= 0) direction = -direction;
  slider.value = Math.min(1, Math.max(0, next));
  walk();
}

$("about").textContent = `${model.members.length === 1 ? "One generator" : model.members.length + " generators"} of a GAN herd, running in this page. ` +
  "Nothing is sent anywhere. A seed and a label always give the same sample.";
$("walk-help").textContent = "The generator of the first seed goes from its noise to that of the second seed." + (model.image ? " Click a sample to start from it." : "");
$("label").append(new Option("any", -1), ...model.samplable.map((y) => new Option(model.labels[y], y)));
if (!model.samplable.length) $("label-field").hidden = true;
if (!model.image) $("count").value = 1000;
$("draw").addEventListener("submit", (event) => { event.preventDefault(); draw(); });
$("label").addEventListener("change", draw);
$("other").addEventListener("click", () => { $("seed").value = Math.floor(Math.random() * 1e9); draw(); });
function under(event) {
  const box = $("grid").getBoundingClientRect(), columns = Number($("grid").dataset.columns), rows = Math.ceil(drawn.length / columns);
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns), row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  return model.image ? drawn[row * columns + column] : undefined;
}
$("grid").addEventListener("click", (event) => {
  const one = under(event);
  if (one) { $("from").value = one.seed; $("position").value = 0; walk(); }
});
$("grid").addEventListener("mousemove", (event) => {
  const one = under(event);
  $("grid").title = one ? `seed ${one.seed}${name(one.label) ? ", label " + name(one.label) : ""}` : "";
});
for (const id of ["from", "to", "position"]) $(id).addEventListener("input", walk);
$("walk").addEventListener("submit", (event) => event.preventDefault());
$("play").addEventListener("click", () => {
  playing = playing ? (clearInterval(playing), 0) : setInterval(play, 40);
  $("play").textContent = playing ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", String(Boolean(playing)));
});
draw();
