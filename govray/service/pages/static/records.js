// "Was this text used?": the hash is computed here, and only the hash is sent.

import { digestOfFile, digestOf, utf8 } from "./bytes.js";
import { byId, element } from "./dom.js";

const form = byId("search-form");
const answer = byId("answer");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [file] = byId("file").files;
  const text = byId("text").value;
  if (!file && !text) {
    say("warn", "Nothing to search for", "Paste the text of a record, or choose a file.");
    byId("text").focus();
    return;
  }
  const digest = file ? await digestOfFile(file) : digestOf(utf8(text));
  byId("hash").textContent = digest;
  answer.replaceChildren(element("p", { class: "soft" }, "Searching…"));
  try {
    show(await ask(digest));
  } catch (error) {
    say("bad", "The search failed", error.message);
  }
  answer.focus();
});

async function ask(digest) {
  const response = await fetch("/v1/records:search", {
    method: "POST",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ sha256: digest.replace("sha256:", "") }),
  });
  const body = await response.json();
  if (!response.ok) throw new Error([body.detail ?? body.title, body.do].filter(Boolean).join(" "));
  return body;
}

function show(body) {
  const found = body.matches ?? [];
  if (!found.length) {
    say(
      "",
      "Not found in the recorded data",
      "No corpus that you may read has a record with this hash. See below what that does not say.",
    );
    return;
  }
  const rows = found.map((each) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, link(`/corpora/${encodeURIComponent(each.corpus)}`, each.corpus)),
      element("td", {}, link(`/attestations/${each.attestation.replace("sha256:", "")}`, each.name ?? each.run)),
      element("td", {}, SPLITS[each.split] ?? each.split),
      element("td", { class: "number" }, Number(each.stepCount).toLocaleString("en")),
      element("td", {}, (each.layerGroups ?? []).join(", ") || "none"),
    ),
  );
  const head = ["Corpus", "Model", "In the run", "Steps", "Layer groups updated"].map((name) =>
    element("th", { scope: "col" }, name),
  );
  answer.replaceChildren(
    element("h2", {}, `Found in ${found.length === 1 ? "one place" : `${found.length} places`}`),
    element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Where the record was found" },
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)),
    ),
  );
}

const SPLITS = {
  train: "trained on",
  reserve: "held back, never trained on",
  empty: "empty, never trained on",
};

const link = (href, text) => element("a", { href }, text);

function say(kind, title, text) {
  answer.replaceChildren(
    element("div", { class: `note ${kind}` }, element("h2", {}, title), element("p", {}, text)),
  );
}
