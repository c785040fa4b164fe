// The ledger page: is this entry in the signed tree? Answered from tiles, in the browser.

import { equal, hex, text } from "./bytes.js";
import { byId, element, fetchBytes, fetchJson } from "./dom.js";
import { leafHash, proofFromTiles, tilePath, verifyInclusion } from "./merkle.js";
import { noteSigners, parseNote } from "./note.js";
import { now, rootControls } from "./pinned.js";
import { Trust } from "./trust.js";

const form = byId("proof-form");
const { base, run } = form.dataset;
const page = { root: null };
const kinds = fetchJson("/static/kinds.json").then((found) => found.kinds);

const WORDS = {
  checked: ["checked", "good", "✓"],
  "not-checked": ["not checked", "", "–"],
  failed: ["failed", "bad", "✕"],
};

function mark(step, state, said) {
  const node = byId("proof-steps").querySelector(`[data-step="${step}"]`);
  const [word, kind, sign] = WORDS[state];
  node.dataset.state = state;
  node.querySelector(".tick").textContent = sign;
  node.querySelector(".badge").textContent = word;
  node.querySelector(".badge").className = `badge state ${kind}`;
  node
    .querySelector("ul")
    .replaceChildren(element("li", state === "failed" ? { class: "error" } : {}, said));
}

function verdict(kind, said) {
  byId("proof-verdict").className = `note ${kind}`;
  byId("proof-verdict").textContent = said;
}

async function checkpoint() {
  const note = parseNote(await fetchBytes(`${base}/checkpoint`));
  if (note.origin !== `govray.dev/ledger/${run}`) throw new Error("the checkpoint is of another ledger");
  if (!page.root) return { note, signed: null };
  const trust = await Trust.load(page.root, await kinds, now());
  for (const authority of trust.authorities.values()) {
    if (authority.role !== "operator" || now() >= authority.expires) continue;
    if ((await noteSigners(note, authority.loaded)).length) return { note, signed: authority.name };
  }
  throw new Error("no operator of your trust root signed it");
}

// Entries stand in bundles beside their tile: each with its length before it, as two bytes, or as
// four zero-led ones where it is longer (tlog-tiles has only the first).
async function entryAt(index, size) {
  const number = Math.floor(index / 256);
  const width = Math.min(256, size - number * 256);
  const path = tilePath(0, number, width).replace("tile/0/", "tile/entries/");
  const bytes = await fetchBytes(`${base}/${path}`);
  let at = 0;
  for (let i = 0; ; i += 1) {
    if (at + 2 > bytes.length) throw new Error("the bundle of entries is cut off");
    const length = bytes[at] * 256 + bytes[at + 1];
    if (i === index % 256) return bytes.subarray(at + 2, at + 2 + length);
    at += 2 + length;
  }
}

async function check(index) {
  for (const step of ["checkpoint", "entry", "root"]) mark(step, "not-checked", "waits");
  let step = "checkpoint";
  try {
    const { note, signed } = await checkpoint();
    if (signed) mark(step, "checked", `${signed} signed ${note.size} entries`);
    else mark(step, "not-checked", "Needs a trust root, from its owner and not from this server");
    if (!(index < note.size)) throw new Error(`the checkpoint has ${note.size} entries`);
    step = "entry";
    const entry = await entryAt(index, note.size);
    const leaf = leafHash(entry);
    const width = Math.min(256, note.size - Math.floor(index / 256) * 256);
    const tile = await fetchBytes(`${base}/${tilePath(0, Math.floor(index / 256), width)}`);
    const at = (index % 256) * 32;
    if (!equal(tile.subarray(at, at + 32), leaf)) throw new Error("the tile has another hash there");
    mark(step, "checked", `its leaf hash is ${hex(leaf).slice(0, 16)}…`);
    byId("entry").textContent = text(entry);
    byId("entry-details").classList.remove("hidden");
    step = "root";
    const read = [];
    const proof = await proofFromTiles(index, note.size, (level, number, size) => {
      read.push(level);
      return fetchBytes(`${base}/${tilePath(level, number, size)}`);
    });
    verifyInclusion(leaf, index, note.size, proof, note.root);
    mark(step, "checked", `${proof.length} hashes from ${read.length} tiles give the same root`);
    if (signed) verdict("good", `Entry ${index} is in the tree that ${signed} signed.`);
    else verdict("", `Entry ${index} is in this checkpoint’s tree. Who signed it was not checked.`);
  } catch (error) {
    mark(step, "failed", error.message);
    verdict("bad", `Not shown: ${error.message}`);
  }
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  verdict("", "Checking…");
  await check(Number(byId("index").value));
  form.dataset.done = String(Number(form.dataset.done ?? 0) + 1);
});

await rootControls(await kinds, (root) => {
  page.root = root;
});
form.dataset.ready = "yes";
