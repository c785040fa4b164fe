// Parallel coordinates of a search: one line a trial, over its hyperparameters and its result.

import { byId, json, svg } from "./dom.js";

const BOX = { left: 70, right: 830, top: 34, bottom: 280 };

// axes: [{ name, values: [label, …] | null, low, high, log }], trials: [{ id, best, at: [0…1 | null] }]
const { axes, trials } = json(byId("parallel-data"));
const x = (i) => BOX.left + (i / Math.max(axes.length - 1, 1)) * (BOX.right - BOX.left);
const y = (share) => BOX.bottom - share * (BOX.bottom - BOX.top);
const parts = [];

for (const trial of [...trials].sort((a, b) => Number(a.best) - Number(b.best))) {
  const points = trial.at
    .map((share, i) => (share === null ? null : `${x(i).toFixed(1)},${y(share).toFixed(1)}`))
    .filter(Boolean);
  parts.push(
    svg(
      "polyline",
      { class: trial.best ? "trial best" : "trial", points: points.join(" ") },
      svg("title", {}, trial.id),
    ),
  );
}

axes.forEach((axis, i) => {
  parts.push(svg("line", { class: "axis", x1: x(i), x2: x(i), y1: BOX.top, y2: BOX.bottom }));
  parts.push(svg("text", { x: x(i), y: BOX.top - 14, "text-anchor": "middle" }, axis.name));
  for (const [share, text] of axis.marks) {
    parts.push(svg("text", { x: x(i) + 6, y: y(share) + 4 }, text));
  }
});

byId("parallel").replaceChildren(...parts);
byId("parallel").dataset.ready = "yes";
