"use strict";
// The model of `loader.py` in JavaScript. Values have no batch axis: one sample is computed at a time.
const model = JSON.parse(document.getElementById("model").textContent);
const numbers = (() => {
  const text = atob(model.numbers), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Float32Array(bytes.buffer);
})();
const product = (shape) => shape.reduce((a, b) => a * b, 1);
const value = (data, shape) => ({ data, shape });
const map = (x, f) => value(x.data.map(f), x.shape);

function broadcast(a, b, f) {
  const rank = Math.max(a.shape.length, b.shape.length), pad = (s) => Array(rank - s.length).fill(1).concat(s);
  const sa = pad(a.shape), sb = pad(b.shape), shape = sa.map((n, i) => Math.max(n, sb[i]));
  const strides = (s) => { const out = Array(rank).fill(0); let step = 1; for (let i = rank - 1; i >= 0; i--) { if (s[i] > 1) out[i] = step; step *= s[i]; } return out; };
  const ta = strides(sa), tb = strides(sb), data = new Float32Array(product(shape)), at = Array(rank).fill(0);
  for (let o = 0, i = 0, j = 0; o < data.length; o++) {
    data[o] = f(a.data[i], b.data[j]);
    for (let d = rank - 1; d >= 0; d--) {
      i += ta[d]; j += tb[d];
      if (++at[d] < shape[d]) break;
      i -= ta[d] * shape[d]; j -= tb[d] * shape[d]; at[d] = 0;
    }
  }
  return value(data, shape);
}

// The indices of a convolution along one axis whose place inside the other map exists.
const span = (size, other, stride, offset) => [Math.max(0, Math.ceil(-offset / stride)), Math.min(size, Math.floor((other - 1 - offset) / stride) + 1)];

const layers = {
  linear([x, w, b]) {
    const [outs, ins] = w.shape, rows = x.data.length / ins, data = new Float32Array(rows * outs);
    for (let r = 0; r < rows; r++) for (let o = 0; o < outs; o++) {
      let sum = b ? b.data[o] : 0;
      for (let i = 0, p = o * ins, q = r * ins; i < ins; i++) sum += w.data[p + i] * x.data[q + i];
      data[r * outs + o] = sum;
    }
    return value(data, [...x.shape.slice(0, -1), outs]);
  },
  conv2d([x, w, b], { stride: [sy, sx], padding: [py, px], dilation: [dy, dx], groups }) {
    const [, H, W] = x.shape, [outs, ins, K, L] = w.shape, each = outs / groups;
    const h = Math.floor((H + 2 * py - dy * (K - 1) - 1) / sy) + 1, v = Math.floor((W + 2 * px - dx * (L - 1) - 1) / sx) + 1;
    const data = new Float32Array(outs * h * v), from = x.data;
    for (let o = 0; o < outs; o++) {
      const base = o * h * v, first = Math.floor(o / each) * ins;
      if (b) data.fill(b.data[o], base, base + h * v);
      for (let i = 0; i < ins; i++) for (let k = 0; k < K; k++) for (let l = 0; l < L; l++) {
        const weight = w.data[((o * ins + i) * K + k) * L + l], oy = k * dy - py, ox = l * dx - px;
        const [y0, y1] = span(h, H, sy, oy), [x0, x1] = span(v, W, sx, ox);
        for (let y = y0; y < y1; y++) {
          const p = base + y * v, q = (first + i) * H * W + (y * sy + oy) * W + ox;
          for (let c = x0; c < x1; c++) data[p + c] += weight * from[q + c * sx];
        }
      }
    }
    return value(data, [outs, h, v]);
  },
  conv_transpose2d([x, w, b], { stride: [sy, sx], padding: [py, px], dilation: [dy, dx], output_padding: [ey, ex], groups }) {
    const [C, H, W] = x.shape, [, outs, K, L] = w.shape, each = C / groups;
    const h = (H - 1) * sy - 2 * py + dy * (K - 1) + ey + 1, v = (W - 1) * sx - 2 * px + dx * (L - 1) + ex + 1;
    const data = new Float32Array(outs * groups * h * v), from = x.data;
    if (b) for (let o = 0; o < outs * groups; o++) data.fill(b.data[o], o * h * v, (o + 1) * h * v);
    for (let i = 0; i < C; i++) for (let o = 0; o < outs; o++) {
      const base = (Math.floor(i / each) * outs + o) * h * v;
      for (let k = 0; k < K; k++) for (let l = 0; l < L; l++) {
        const weight = w.data[((i * outs + o) * K + k) * L + l], oy = k * dy - py, ox = l * dx - px;
        const [y0, y1] = span(H, h, sy, oy), [x0, x1] = span(W, v, sx, ox);
        for (let y = y0; y < y1; y++) {
          const p = base + (y * sy + oy) * v + ox, q = i * H * W + y * W;
          for (let c = x0; c < x1; c++) data[p + c * sx] += weight * from[q + c];
        }
      }
    }
    return value(data, [outs * groups, h, v]);
  },
  affine([x, gain, shift]) {
    const inner = x.data.length / gain.data.length, data = new Float32Array(x.data.length);
    for (let c = 0, i = 0; c < gain.data.length; c++) for (let k = 0; k < inner; k++, i++) data[i] = x.data[i] * gain.data[c] + shift.data[c];
    return value(data, x.shape);
  },
  leaky_relu: ([x], { negative_slope }) => map(x, (a) => (a < 0 ? a * negative_slope : a)),
  tanh: ([x]) => map(x, Math.tanh),
  sigmoid: ([x]) => map(x, (a) => 1 / (1 + Math.exp(-a))),
  rsqrt: ([x]) => map(x, (a) => 1 / Math.sqrt(a)),
  add: ([a, b]) => broadcast(a, b, (p, q) => p + q),
  mul: ([a, b]) => broadcast(a, b, (p, q) => p * q),
  reshape: ([x], { shape }) => value(x.data, shape),
  embedding([y, w]) { const n = w.shape[1]; return value(w.data.slice(y * n, (y + 1) * n), [n]); },
  upsample([x], { scale_factor: f }) {
    const [C, H, W] = x.shape, data = new Float32Array(C * H * W * f * f);
    for (let c = 0, o = 0; c < C; c++) for (let y = 0; y < H * f; y++) {
      const row = (c * H + Math.floor(y / f)) * W;
      for (let k = 0; k < W * f; k++, o++) data[o] = x.data[row + Math.floor(k / f)];
    }
    return value(data, [C, H * f, W * f]);
  },
  slice([x], { dim, start, length }) {
    const inner = product(x.shape.slice(dim)), size = x.shape[dim - 1], outer = product(x.shape.slice(0, dim - 1));
    const data = new Float32Array(outer * length * inner), shape = x.shape.map((n, i) => (i === dim - 1 ? length : n));
    for (let o = 0; o < outer; o++) data.set(x.data.subarray((o * size + start) * inner, (o * size + start + length) * inner), o * length * inner);
    return value(data, shape);
  },
  concat(parts, { dim }) {
    const axis = dim - 1, total = parts.reduce((n, p) => n + p.shape[axis], 0), shape = parts[0].shape.map((n, i) => (i === axis ? total : n));
    const outer = product(shape.slice(0, axis)), data = new Float32Array(product(shape));
    for (let o = 0, at = 0; o < outer; o++) for (const p of parts) {
      const size = p.data.length / outer;
      data.set(p.data.subarray(o * size, (o + 1) * size), at);
      at += size;
    }
    return value(data, shape);
  },
  permute([x], { dims }) {
    const order = dims.slice(1).map((d) => d - 1), rank = order.length, steps = Array(rank).fill(1);
    for (let i = rank - 2; i >= 0; i--) steps[i] = steps[i + 1] * x.shape[i + 1];
    const shape = order.map((d) => x.shape[d]), strides = order.map((d) => steps[d]), data = new Float32Array(x.data.length), at = Array(rank).fill(0);
    for (let o = 0, i = 0; o < data.length; o++) {
      data[o] = x.data[i];
      for (let d = rank - 1; d >= 0; d--) {
        i += strides[d];
        if (++at[d] < shape[d]) break;
        i -= strides[d] * shape[d]; at[d] = 0;
      }
    }
    return value(data, shape);
  },
  matmul([a, b]) {
    const [m, k] = a.shape.slice(-2), n = b.shape[b.shape.length - 1], batches = a.data.length / (m * k), step = b.data.length > k * n ? k * n : 0;
    const data = new Float32Array(batches * m * n);
    for (let t = 0; t < batches; t++) for (let r = 0; r < m; r++) for (let i = 0; i < k; i++) {
      const weight = a.data[(t * m + r) * k + i], p = (t * m + r) * n, q = t * step + i * n;
      for (let c = 0; c < n; c++) data[p + c] += weight * b.data[q + c];
    }
    return value(data, [...a.shape.slice(0, -1), n]);
  },
  softmax([x]) {
    const n = x.shape[x.shape.length - 1], data = new Float32Array(x.data.length);
    for (let r = 0; r < data.length; r += n) {
      let most = -Infinity, sum = 0;
      for (let i = r; i < r + n; i++) most = Math.max(most, x.data[i]);
      for (let i = r; i < r + n; i++) sum += data[i] = Math.exp(x.data[i] - most);
      for (let i = r; i < r + n; i++) data[i] /= sum;
    }
    return value(data, x.shape);
  },
  max_pool2d([x], { kernel_size: s, ceil_mode }) {
    const [C, H, W] = x.shape, size = (n) => Math.max(1, (ceil_mode ? Math.ceil : Math.floor)((n - s) / s) + 1), h = size(H), v = size(W);
    const data = new Float32Array(C * h * v).fill(-Infinity);
    for (let c = 0; c < C; c++) for (let y = 0; y < Math.min(H, h * s); y++) for (let k = 0; k < Math.min(W, v * s); k++) {
      const o = (c * h + Math.floor(y / s)) * v + Math.floor(k / s);
      data[o] = Math.max(data[o], x.data[(c * H + y) * W + k]);
    }
    return value(data, [C, h, v]);
  },
};

// splitmix64 over key and counter, as in `loader.py`.
const MASK = (1n << 64n) - 1n, GOLDEN = 0x9e3779b97f4a7c15n;
function mix(x) {
  x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return x ^ (x >> 31n);
}
function randomBits(seed, purpose, count) {
  const key = mix(((mix((BigInt(seed) + GOLDEN) & MASK) ^ BigInt(purpose)) + GOLDEN) & MASK);
  return Array.from({ length: count }, (_, i) => mix((key + BigInt(i + 1) * GOLDEN) & MASK));
}
function route(seed, label) {
  const [u, w] = randomBits(seed, 9, 2).map((bits) => Number(bits >> 40n));
  const count = (draw, limits) => limits.filter((limit) => draw >= limit).length;
  const member = count(u, model.member_thresholds[label + 1]);
  if (!model.takes_label) return { member, label: model.label_of[member] };
  return { member, label: label < 0 ? count(w, model.label_thresholds) : label };
}
function noise(seed, member) {
  return Float32Array.from(randomBits(seed, 8, model.latent), (bits) => {
    const high = Number(bits >> 40n) / 16777216, low = Number(bits & 0xffffffn) / 16777216;
    return model.uniform[member] ? high * 2 - 1 : Math.sqrt(-2 * Math.log(1 - high)) * Math.cos(2 * Math.PI * low);
  });
}
function generate(member, z, label) {
  const [net, row] = model.members[member], values = { z: value(z, [z.length]), y: label };
  let last;
  for (const [name, layer, inputs, settings] of model.nets[net]) {
    const given = inputs.map((input) => {
      if (input in values) return values[input];
      const [offset, rows, shape] = model.tensors[input], size = product(shape), first = offset + (row % rows) * size;
      return value(numbers.subarray(first, first + size), shape);
    });
    last = values[name] = layers[layer](given, settings);
  }
  const scaled = last.data.map((a) => a * model.scale + model.offset);
  return model.image ? Uint8ClampedArray.from(scaled, Math.round) : scaled;
}
function sample(seed, label) {
  const chosen = route(seed, label);
  return { ...chosen, x: generate(chosen.member, noise(seed, chosen.member), chosen.label) };
}
