// Parallel coordinates of a search: one line a trial, over its hyperparameters and its result.

import { byId, json, svg } from "./dom.js";

const BOX = { left: 70, right: 830, top: 56, bottom: 276 };

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
  parts.push(svg("text", { x: x(i), y: BOX.top - 30, "text-anchor": "middle" }, axis.name));
  for (const [share, text] of axis.marks) {
    // The ends stand above and below the axis, where no line crosses them.
    const [dx, dy, anchor] = share === 1 ? [0, -8, "middle"] : share === 0 ? [0, 18, "middle"] : [6, 4, "start"];
    parts.push(svg("text", { x: x(i) + dx, y: y(share) + dy, "text-anchor": anchor }, text));
  }
});

byId("parallel").replaceChildren(...parts);
byId("parallel").dataset.ready = "yes";
