// Curves of a run, or of several compared: drawn, zoomed, smoothed, and followed while one goes on.

import { draw } from "./chart.js";
import { watch } from "./chart_view.js";
import { byId, json } from "./dom.js";

const looked = { view: {} };

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
        draw(each.figure, each.series, looked.view);
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
  const form = byId("view");
  const redraw = (view) => {
    looked.view = view;
    for (const { figure, series } of charts) draw(figure, series, view);
  };
  if (form) {
    watch(form, charts.map(({ figure }) => figure), redraw);
  } else {
    redraw({});
    addEventListener("resize", () => redraw({}));
  }
  if (place.dataset.live === "yes" && place.dataset.stream) follow(place, charts);
  place.dataset.ready = "yes";
}
