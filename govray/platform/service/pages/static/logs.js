// The end of a log as it grows, by server-sent events. Text only ever becomes a text node.

import { byId, element } from "./dom.js";

const MOST_LINES = 5000;
// As `level` in pages/logs.py.
const BAD = /\b(error|exception|traceback|fatal|critical|failed|killed)\b/i;
const BAD_NAME = /[a-z]Error\b/;
const WARN = /\bwarn(ing)?\b/i;
const WARN_NAME = /[a-z]Warning\b/;

function level(text) {
  if (BAD.test(text) || BAD_NAME.test(text)) return "bad";
  return WARN.test(text) || WARN_NAME.test(text) ? "warn" : "";
}

const place = byId("log");
const button = byId("follow");
const source = new EventSource(place.dataset.stream);
let following = true;

function toEnd() {
  if (following) place.scrollTop = place.scrollHeight;
}

button.hidden = false;
button.addEventListener("click", () => {
  following = !following;
  button.setAttribute("aria-pressed", String(following));
  toEnd();
});

source.addEventListener("lines", (event) => {
  byId("nothing")?.remove();
  const lines = JSON.parse(event.data);
  place.append(
    ...lines.map((text) => element("div", { class: `log-line ${level(text)}` }, text || " ")),
  );
  while (place.childElementCount > MOST_LINES) place.firstElementChild.remove();
  toEnd();
});
source.addEventListener("end", () => {
  source.close();
  byId("live").textContent = "The run has ended.";
});
source.addEventListener("error", () => {
  byId("live").textContent = "The connection is lost; trying again.";
});
source.addEventListener("open", () => {
  byId("live").textContent = "This page follows the log.";
});
toEnd();
