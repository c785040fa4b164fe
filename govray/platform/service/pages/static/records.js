// "Was this text used?": the hash is computed here, and only the hash is sent.

import { digestOf, digestOfFile, equal, fromBase64, utf8 } from "./bytes.js";
import { byId, element, fetchJson } from "./dom.js";
import { leafHash, verifyInclusion } from "./merkle.js";
import { noteSigners, parseNote } from "./note.js";
import { now, pinned } from "./pinned.js";
import { Trust } from "./trust.js";

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
    await show(await ask(digest));
  } catch (error) {
    say("bad", "The search failed", error.message);
  }
  answer.focus();
});

async function ask(digest) {
  const response = await fetch(`/v1/records/${digest.replace("sha256:", "")}?proofs=1`);
  const body = await response.json();
  if (!response.ok) throw new Error([body.detail ?? body.title, body.do].filter(Boolean).join(". "));
  return body;
}

async function show(body) {
  const found = body.sightings;
  if (!found.length) {
    say(
      "",
      "Not found in the recorded data",
      (body.closed.length
        ? `These were not searched, since the store lacks their secrets or records: ${body.closed.join(", ")}. No other`
        : "No") + " corpus that you may read has a record with this hash. See below what that does not say.",
    );
    return;
  }
  const rows = [];
  for (const each of found) {
    rows.push(
      element(
        "tr",
        {},
        element("th", { scope: "row" }, link(`/corpora/${encodeURIComponent(each.corpus)}`, each.corpus)),
        element("td", {}, link(`/attestations/${each.attestation.replace("sha256:", "")}`, each.name)),
        element("td", {}, each.use),
        element("td", { class: "number" }, steps(each)),
        element("td", {}, each.groups.join(", ") || "none"),
        element("td", { class: "wide" }, await proven(each)),
      ),
    );
  }
  const names = ["Corpus", "Model", "In the run", "Steps", "Layer groups updated", "Ledger"];
  const head = names.map((name) => element("th", { scope: "col" }, name));
  answer.replaceChildren(
    element("h2", {}, `Found in ${found.length === 1 ? "one place" : `${found.length} places`}`),
    element(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Where the record was found" },
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)),
    ),
  );
}

function steps({ stepCount, steps: listed }) {
  if (!stepCount) return "none";
  const first = listed.slice(0, 3).join(", ");
  return `${stepCount.toLocaleString("en")}: ${first}${stepCount > 3 ? " …" : ""}`;
}

// What of the proof of the first step was checked here, in words.
async function proven({ split, proofs, noProof }) {
  if (split !== "train") return "no step read it";
  if (!proofs.length) return noProof ?? "no proof was sent";
  const [proof] = proofs;
  try {
    const note = parseNote(utf8(proof.checkpoint));
    const leaf = fromBase64(proof.leafHash);
    if (proof.leaf && !equal(leafHash(utf8(proof.leaf)), leaf)) throw new Error("another leaf");
    if (note.origin !== `govray.dev/ledger/${proof.run}`) throw new Error("another ledger");
    if (String(note.size) !== proof.size) throw new Error("another size");
    verifyInclusion(leaf, Number(proof.index), note.size, proof.path.map(fromBase64), note.root);
    const signer = await signedBy(note);
    return (
      `✓ Entry ${proof.index} of step ${proof.step} is in the ledger’s tree: checked here. ` +
      (signer ? `${signer} signed the tree.` : "Who signed the tree was not checked: pin a trust root.")
    );
  } catch (error) {
    return `✕ The proof does not hold: ${error.message}`;
  }
}

async function signedBy(note) {
  const root = pinned();
  if (!root) return null;
  const { kinds } = await fetchJson("/static/kinds.json");
  const trust = await Trust.load(root, kinds, now());
  for (const authority of trust.authorities.values()) {
    if (authority.role !== "operator" || now() >= authority.expires) continue;
    if ((await noteSigners(note, authority.loaded)).length) return authority.name;
  }
  return null;
}

const link = (href, text) => element("a", { href }, text);

function say(kind, title, text) {
  answer.replaceChildren(
    element("div", { class: `note ${kind}` }, element("h2", {}, title), element("p", {}, text)),
  );
}
