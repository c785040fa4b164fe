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
  throw new Error("no operator that your trust root names signed it (delegations are not read here)");
}

// An entry, from the bundle beside its tile: each behind its length, of two bytes, or of four in
// the bundles that the standard has no room for (`govray/platform/store/tiles.py`).
async function entryAt(index, size) {
  const number = Math.floor(index / 256);
  const path = tilePath(0, number, Math.min(256, size - number * 256));
  for (const [level, prefix] of [["entries", 2], ["entries32", 4]]) {
    const response = await fetch(`${base}/${path.replace("tile/0/", `tile/${level}/`)}`);
    if (response.status === 404) continue;
    if (response.status === 403) return null;
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    return pick(new Uint8Array(await response.arrayBuffer()), index % 256, prefix);
  }
  throw new Error("the bundle of entries is not there");
}

function pick(bytes, number, prefix) {
  let at = 0;
  for (let i = 0; ; i += 1) {
    if (at + prefix > bytes.length) throw new Error("the bundle of entries is cut off");
    const length = bytes.subarray(at, at + prefix).reduce((sum, byte) => sum * 256 + byte, 0);
    at += prefix;
    if (i === number) return bytes.subarray(at, at + length);
    at += length;
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
    const width = Math.min(256, note.size - Math.floor(index / 256) * 256);
    const tile = await fetchBytes(`${base}/${tilePath(0, Math.floor(index / 256), width)}`);
    const at = (index % 256) * 32;
    const leaf = tile.slice(at, at + 32);
    if (entry === null) {
      mark(step, "not-checked", `Entries are for staff. Its leaf hash is ${hex(leaf)}`);
    } else {
      if (!equal(leafHash(entry), leaf)) throw new Error("the tile has another hash there");
      mark(step, "checked", `its leaf hash is ${hex(leaf).slice(0, 16)}…`);
      byId("entry").textContent = text(entry);
      byId("entry-details").classList.remove("hidden");
    }
    step = "root";
    const read = [];
    const proof = await proofFromTiles(index, note.size, (level, number, size) => {
      read.push(level);
      return fetchBytes(`${base}/${tilePath(level, number, size)}`);
    });
    verifyInclusion(leaf, index, note.size, proof, note.root);
    mark(step, "checked", `${proof.length} hashes from ${read.length} tiles give the same root`);
    const what = entry === null ? `This hash is at ${index}` : `Entry ${index} is`;
    if (signed) verdict("good", `${what} in the tree that ${signed} signed.`);
    else verdict("", `${what} in this checkpoint’s tree. Who signed it was not checked.`);
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
