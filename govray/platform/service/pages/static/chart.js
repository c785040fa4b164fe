// A chart of curves as SVG: a range of steps, smoothed if asked for, on a linear or logarithmic axis.

import { element, svg } from "./dom.js";

export const BOX = { left: 64, top: 32, bottom: 248 };
const HEIGHT = 300;
const MOST_POINTS = 2000;
const MOST_LINES = 8;

export function ticks(low, high, about = 5) {
  const least = 1e-9 * Math.max(1, Math.abs(low), Math.abs(high));
  if (!(high - low > least)) [low, high] = [low - 1, high + 1];
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let n = Math.floor(low / step); n <= Math.ceil(high / step); n += 1) {
    found.push(Number((n * step).toPrecision(12)));
  }
  return found;
}

// Of a logarithmic axis: powers of ten, and where these are few, twice and five times each.
export function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const apart = Math.max(1, Math.ceil((last - first) / 8));
  const factors = last - first > 2 ? [1] : [1, 2, 5];
  const found = [];
  for (let power = first; power <= last; power += apart) {
    found.push(...factors.map((each) => Number((each * 10 ** power).toPrecision(12))));
  }
  const below = found.filter((each) => each <= low).at(-1) ?? found[0];
  const above = found.find((each) => each >= high) ?? found.at(-1);
  const kept = found.filter((each) => each >= below && each <= above);
  return kept.length > 1 ? kept : [kept[0] / 10, kept[0] * 10];
}

// The exponential moving average, without the pull of its start (Kingma and Ba 2015, section 3).
export function smoothed(points, weight) {
  let sum = 0;
  let left = 1;
  return points.map(([step, value]) => {
    sum = weight * sum + (1 - weight) * value;
    left *= weight;
    return [step, sum / (1 - left)];
  });
}

// At most so many points: of each stretch the lowest and the highest, and both ends. The page
// comes with fewer; a run that is followed adds to them.
function thin(points) {
  if (points.length <= MOST_POINTS) return points;
  const size = Math.ceil((2 * points.length) / (MOST_POINTS - 2));
  const found = [points[0]];
  for (let at = 0; at < points.length; at += size) {
    const some = points.slice(at, at + size);
    const low = some.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = some.reduce((a, b) => (b[1] > a[1] ? b : a));
    found.push(...(low[0] < high[0] ? [low, high] : [high, low]));
  }
  return [...found, points.at(-1)];
}

// A group, or a run, is drawn alike on all charts of a page.
const styles = new Map();

function styled(name) {
  if (!styles.has(name)) styles.set(name, (styles.size % MOST_LINES) + 1);
  return `s${styles.get(name)}`;
}

const least = (list) => list.reduce((a, b) => Math.min(a, b));
const most = (list) => list.reduce((a, b) => Math.max(a, b));

// view: { from, to, smooth, log }; what is absent is the whole, unsmoothed, linear.
export function draw(figure, series, view = {}) {
  const chart = figure.querySelector("svg.chart");
  const shown = series.slice(0, MOST_LINES).map(({ name, points }) => {
    const seen = points.filter(
      ([step, value]) => step >= (view.from ?? -Infinity) && step <= (view.to ?? Infinity) && !(view.log && value <= 0),
    );
    return { name, raw: seen, points: view.smooth > 0 ? smoothed(seen, view.smooth) : seen };
  });
  legend(figure, shown);
  // One unit a pixel, so that text is as large on a phone.
  const width = Math.max(chart.clientWidth, 280);
  const right = width - 24;
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const all = shown.flatMap((each) => [...each.raw, ...each.points]);
  if (!all.length) {
    const text = view.log ? "No number above zero in this range" : "No number in this range";
    chart.replaceChildren(svg("text", { x: width / 2, y: 140, "text-anchor": "middle" }, text));
    return;
  }
  const steps = all.map((point) => point[0]);
  const values = all.map((point) => point[1]);
  const [first, last] = [view.from ?? least(steps), view.to ?? most(steps)];
  const levels = (view.log ? logTicks : ticks)(least(values), most(values));
  const read = view.log ? Math.log10 : Number;
  const [low, high] = [read(levels[0]), read(levels.at(-1))];
  const x = (step) => BOX.left + ((step - first) / Math.max(last - first, 1)) * (right - BOX.left);
  const y = (value) => BOX.bottom - ((read(value) - low) / (high - low)) * (BOX.bottom - BOX.top);
  Object.assign(figure, { steps: [first, last], right });
  const across = { x: (BOX.left + right) / 2, y: BOX.bottom + 40, "text-anchor": "middle" };
  const parts = [
    svg("text", { x: 8, y: 18 }, view.log ? `${figure.dataset.name} (logarithmic)` : figure.dataset.name),
    svg("text", across, "step"),
  ];
  for (const level of levels) {
    parts.push(svg("line", { class: "grid-line", x1: BOX.left, x2: right, y1: y(level), y2: y(level) }));
    parts.push(svg("text", { x: BOX.left - 8, y: y(level) + 4, "text-anchor": "end" }, String(level)));
  }
  for (const step of new Set([first, Math.round((first + last) / 2), last])) {
    parts.push(
      svg("text", { x: x(step), y: BOX.bottom + 20, "text-anchor": "middle" }, step.toLocaleString("en")),
    );
  }
  parts.push(svg("line", { class: "axis", x1: BOX.left, x2: right, y1: BOX.bottom, y2: BOX.bottom }));
  for (const { name, raw, points } of shown) {
    if (view.smooth > 0) parts.push(...line(raw, x, y, `series raw ${styled(name)}`));
    parts.push(...line(points, x, y, `series ${styled(name)}`));
  }
  chart.replaceChildren(...parts);
}

function line(points, x, y, kind) {
  const places = thin(points).map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
  if (places.length === 0) return [];
  if (places.length > 1) return [svg("polyline", { class: kind, points: places.join(" ") })];
  const [cx, cy] = places[0].split(",");
  return [svg("g", { class: kind.replace("series ", "") }, svg("circle", { class: "mark", cx, cy, r: 4 }))];
}

function legend(figure, shown) {
  figure.querySelector(".legend").replaceChildren(
    ...shown.map(({ name, points }) =>
      element(
        "li",
        {},
        svg(
          "svg",
          { viewBox: "0 0 30 10", "aria-hidden": "true" },
          svg("line", { class: styled(name), x1: 0, x2: 30, y1: 5, y2: 5 }),
        ),
        element("span", {}, points.length ? `${name}, last ${points.at(-1)[1].toPrecision(4)}` : `${name}, none here`),
      ),
    ),
  );
}
