// Curves of a trial's metrics, drawn as SVG, and followed live by server-sent events.

import { byId, element, json, svg } from "./dom.js";

const BOX = { left: 64, right: 880, top: 14, bottom: 262 };
const MOST_POINTS = 2000;

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

export function draw(figure, series) {
  const chart = figure.querySelector("svg.chart");
  const all = series.flatMap((each) => each.points);
  if (!all.length) return;
  const steps = all.map((point) => point[0]);
  const values = all.map((point) => point[1]);
  const least = (list) => list.reduce((a, b) => Math.min(a, b));
  const most = (list) => list.reduce((a, b) => Math.max(a, b));
  const [first, last] = [least(steps), most(steps)];
  const levels = ticks(least(values), most(values));
  const [low, high] = [levels[0], levels.at(-1)];
  const x = (step) => BOX.left + ((step - first) / Math.max(last - first, 1)) * (BOX.right - BOX.left);
  const y = (value) => BOX.bottom - ((value - low) / (high - low)) * (BOX.bottom - BOX.top);
  const parts = [];
  for (const level of levels) {
    parts.push(svg("line", { class: "grid-line", x1: BOX.left, x2: BOX.right, y1: y(level), y2: y(level) }));
    parts.push(svg("text", { x: BOX.left - 8, y: y(level) + 4, "text-anchor": "end" }, String(level)));
  }
  for (const step of new Set([first, Math.round((first + last) / 2), last])) {
    parts.push(
      svg("text", { x: x(step), y: BOX.bottom + 20, "text-anchor": "middle" }, step.toLocaleString("en")),
    );
  }
  parts.push(svg("line", { class: "axis", x1: BOX.left, x2: BOX.right, y1: BOX.bottom, y2: BOX.bottom }));
  series.slice(0, 4).forEach(({ points }, i) => {
    const line = thin(points).map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
    if (line.length === 1) {
      const [cx, cy] = line[0].split(",");
      parts.push(svg("g", { class: `s${i + 1}` }, svg("circle", { class: "mark", cx, cy, r: 4 })));
    } else {
      parts.push(svg("polyline", { class: `series s${i + 1}`, points: line.join(" ") }));
    }
  });
  chart.replaceChildren(...parts);
  figure.querySelector(".legend").replaceChildren(
    ...series.slice(0, 4).map(({ name, points }, i) =>
      element(
        "li",
        {},
        svg(
          "svg",
          { viewBox: "0 0 30 10", "aria-hidden": "true" },
          svg("line", { class: `s${i + 1}`, x1: 0, x2: 30, y1: 5, y2: 5 }),
        ),
        `${name}, last ${points.at(-1)[1].toPrecision(4)}`,
      ),
    ),
  );
}

function follow(place, charts) {
  const source = new EventSource(place.dataset.stream);
  const say = (text) => {
    byId("live").textContent = text;
  };
  let due = false;
  const later = (chart) => {
    chart.stale = true;
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      for (const each of charts.filter((one) => one.stale)) {
        each.stale = false;
        draw(each.figure, each.series);
      }
    });
  };
  const add = (group, name, step, value) => {
    const chart = charts.find((each) => each.figure.dataset.name === name);
    if (!chart || !Number.isFinite(value)) return;
    let line = chart.series.find((each) => each.name === group);
    if (!line) chart.series.push((line = { name: group, points: [] }));
    // A step that is sent again, or done again, takes the place of what it supersedes.
    while (line.points.length && line.points.at(-1)[0] >= step) line.points.pop();
    line.points.push([step, value]);
    if (name === "loss" && group === "training") byId("loss").textContent = value.toFixed(3);
    later(chart);
  };
  source.addEventListener("metrics", (event) => {
    const { step, metrics } = JSON.parse(event.data);
    for (const [group, numbers] of Object.entries(metrics)) {
      for (const [name, value] of Object.entries(numbers)) add(group, name, step, value);
    }
    byId("step").textContent = step.toLocaleString("en");
  });
  source.addEventListener("end", (event) => {
    source.close();
    const { state } = JSON.parse(event.data);
    say(`The run is ${state.toLowerCase()}. Load the page again for all of it.`);
  });
  source.addEventListener("open", () => say("This page follows the run."));
  source.addEventListener("error", () => say("The connection was lost; it is tried again."));
}

const place = byId("charts");
if (place) {
  const charts = [...place.querySelectorAll("figure")].map((figure) => ({
    figure,
    series: json(figure.querySelector("script")),
  }));
  for (const { figure, series } of charts) draw(figure, series);
  if (place.dataset.live === "yes" && place.dataset.stream) follow(place, charts);
  place.dataset.ready = "yes";
}
