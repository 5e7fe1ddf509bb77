// Colours for numbers: from good to poor if a figure has a best value, from low to high otherwise, and one for each of a few names.

const GOOD_TO_POOR = [[20, 138, 121], [120, 178, 158], [226, 214, 178], [224, 148, 104], [196, 61, 77]];
const LOW_TO_HIGH = [[68, 57, 142], [51, 104, 173], [33, 152, 160], [92, 190, 120], [233, 215, 66]];
const NAMES = ["#3b6fd8", "#d9703a", "#2f9e6e", "#c2498f", "#8265d6", "#b08a1c", "#2a9db3", "#cf4b4b", "#6b8f2c", "#7a6a5a", "#e08bb5", "#5a86a8"];

function mixed(stops, at) {
  const place = Math.min(1, Math.max(0, at)) * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(place));
  return `rgb(${stops[first].map((low, i) => Math.round(low + (stops[first + 1][i] - low) * (place - first))).join(" ")})`;
}

/** Return the colour of the i-th of several names. */
export const nameColour = (i) => NAMES[i % NAMES.length];

/** Return how values of a figure are coloured: a function, and a legend with its ends. */
export function scaleOf(figure, values) {
  const known = values.filter((value) => typeof value === "number" && Number.isFinite(value)).sort((a, b) => a - b);
  if (!known.length) return { colour: () => null, ends: ["", ""], at: () => null };
  const low = known[Math.floor(known.length * 0.02)], high = known[Math.ceil(known.length * 0.98) - 1];
  if (typeof figure.best === "number") {
    const far = Math.max(0.5, ...[low, high].map((value) => Math.abs(value - figure.best)));
    const at = (value) => Math.abs(value - figure.best) / Math.min(far, 1);
    return { at, colour: (value) => (typeof value === "number" ? mixed(GOOD_TO_POOR, at(value)) : null), ends: ["like the data", "unlike it"], stops: GOOD_TO_POOR };
  }
  const at = (value) => (high > low ? (value - low) / (high - low) : 0.5);
  return { at, colour: (value) => (typeof value === "number" ? mixed(LOW_TO_HIGH, at(value)) : null), ends: [low, high], stops: LOW_TO_HIGH };
}

/** Draw the colours of a scale from its low to its high end. */
export function drawLegend(canvas, scale) {
  const pen = canvas.getContext("2d");
  canvas.width = 130;
  canvas.height = 9;
  for (let x = 0; x < 130; x += 1) {
    pen.fillStyle = mixed(scale.stops, x / 129);
    pen.fillRect(x, 0, 1, 9);
  }
}
