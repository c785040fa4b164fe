// How charts are looked at: the fields of a form, which a drag over a chart fills in too.
//
// The same fields are the address's parameters, so that a view can be sent to somebody. Without this
// script the form asks the server for the range.

import { BOX } from "./chart.js";
import { svg } from "./dom.js";

const LEAST = 8; // pixels of a drag; less is a click

const number = (field) => (field && field.value !== "" ? Number(field.value) : undefined);

export function viewOf(form) {
  const { from, to, smooth, log } = form.elements;
  const [first, last] = [number(from), number(to)];
  const upside = first !== undefined && last !== undefined && first > last;
  return {
    from: upside ? last : first,
    to: upside ? first : last,
    smooth: number(smooth) ?? 0,
    log: log?.checked ?? false,
  };
}

// Calls ``redraw`` with the view, now and whenever it changes.
export function watch(form, figures, redraw) {
  const show = () => {
    const view = viewOf(form);
    const told = form.querySelector("output");
    if (told) told.textContent = view.smooth.toFixed(2);
    redraw(view);
  };
  const changed = () => {
    show();
    remember(form);
  };
  form.addEventListener("input", (event) => {
    if (event.target.matches("[data-view]")) changed();
  });
  form.querySelector("[data-whole]")?.addEventListener("click", (event) => {
    // What is drawn may be a part of the run: then the server is asked for all of it.
    if (form.dataset.part === "yes") return;
    event.preventDefault();
    form.elements.from.value = form.elements.to.value = "";
    changed();
  });
  addEventListener("resize", show);
  for (const figure of figures) dragged(figure, form, changed);
  show();
}

function remember(form) {
  const kept = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (value !== "" && !(name === "smooth" && Number(value) === 0)) kept.append(name, value);
  }
  const query = kept.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

function dragged(figure, form, changed) {
  const chart = figure.querySelector("svg.chart");
  const at = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, BOX.left), figure.right);
  };
  let start = null;
  let mark = null;
  chart.classList.add("zoomable");
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !figure.steps) return;
    start = at(event);
    mark = svg("rect", { class: "selection", x: start, y: BOX.top, width: 0, height: BOX.bottom - BOX.top });
    chart.append(mark);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const here = at(event);
    mark.setAttribute("x", Math.min(start, here));
    mark.setAttribute("width", Math.abs(here - start));
  });
  const end = (event) => {
    if (start === null) return;
    const [left, right] = [start, at(event)].sort((a, b) => a - b);
    mark.remove();
    start = null;
    if (event.type === "pointercancel" || right - left < LEAST) return;
    const [first, last] = figure.steps;
    const step = (place) => first + ((place - BOX.left) / (figure.right - BOX.left)) * (last - first);
    form.elements.from.value = Math.floor(step(left));
    form.elements.to.value = Math.ceil(step(right));
    changed();
  };
  chart.addEventListener("pointerup", end);
  chart.addEventListener("pointercancel", end);
}
