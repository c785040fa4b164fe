// The verification part of a model's page: the reader's root and files in, ticked steps out.

import { digestOfFile } from "./bytes.js";
import { byId, element, fetchBytes, fetchJson } from "./dom.js";
import { now, onDrop, rootControls } from "./pinned.js";
import { check, FILES, state } from "./verify.js";

const WORDS = {
  checked: ["checked", "good", "✓"],
  partly: ["partly checked", "good", "◐"],
  waiting: ["not yet", "", null],
  "not-checked": ["not checked here", "", "–"],
  failed: ["failed", "bad", "✕"],
  unsupported: ["this browser cannot", "bad", "!"],
};

const place = byId("verifier");
const digest = place.dataset.attestation;
const page = { root: null, lists: [], files: new Map(), names: null, running: 0 };

const loaded = (async () => {
  const [told, attestation] = await Promise.all([
    fetchJson("/static/kinds.json"),
    fetchBytes(`/v1/attestations/${digest.replace("sha256:", "")}`),
  ]);
  return { told, attestation };
})();

async function update() {
  page.running += 1;
  const mine = page.running;
  let known;
  try {
    known = await loaded;
  } catch (error) {
    verdict("bad", `The attestation could not be fetched. ${error.message}`);
    return;
  }
  const run = await check({
    root: page.root,
    lists: page.lists,
    attestation: known.attestation,
    known: known.told,
    files: page.files,
    names: page.names,
    digest,
    at: now(),
  });
  if (mine === page.running) show(run.steps);
}

function show(steps) {
  const tally = {};
  for (const step of steps) {
    const found = state(step);
    tally[found] = (tally[found] ?? 0) + 1;
    const node = byId("steps").querySelector(`[data-step="${step.number}"]`);
    const [word, kind, sign] = WORDS[found];
    node.dataset.state = found;
    node.querySelector(".tick").textContent = sign ?? step.number;
    const badge = node.querySelector(".badge");
    badge.textContent = word;
    badge.className = `badge state ${kind}`;
    const list = node.querySelector("ul");
    list.replaceChildren(
      ...step.did.map((text) => element("li", {}, `✓ ${text}`)),
      ...(step.error ? [element("li", { class: "error" }, `✕ ${step.error}`)] : []),
      ...(step.after ? [element("li", { class: "soft" }, `Waits for step ${step.after}`)] : []),
      ...(step.needs.length ? [element("li", {}, `Needs ${few(step.needs)}`)] : []),
      ...step.not.map((text) =>
        element("li", { class: "soft" }, `Not checked here: ${text}. Use govray verify.`),
      ),
    );
  }
  const failed = steps.find((step) => ["failed", "unsupported"].includes(state(step)));
  if (failed) {
    verdict("bad", `Step ${failed.number} ${WORDS[state(failed)][0]}: ${failed.error}`);
  } else if (!page.root) {
    verdict("", "Waiting for a trust root. Nothing was checked.");
  } else {
    const open = (tally.waiting ?? 0) + (tally["not-checked"] ?? 0);
    verdict(
      "good",
      `Nothing failed. In this browser ${tally.checked ?? 0} steps were checked, ` +
        `${tally.partly ?? 0} in part and ${open} not. govray verify checks all ${steps.length}.`,
    );
  }
}

function few(names) {
  const shown = names.slice(0, 4).join(", ");
  return names.length > 4 ? `${shown} and ${names.length - 4} more` : shown;
}

function verdict(kind, text) {
  const node = byId("verdict");
  node.className = `note ${kind}`;
  node.textContent = text;
}

// Files from a folder have their names in it; a single file is known by its digest, or its name.
async function take(given, folder) {
  const status = byId("files-state");
  const known = await loaded.catch(() => null);
  if (!known) return;
  const pinned = new Map(Object.entries(await namesByDigest(known.attestation)));
  if (folder) {
    page.files = new Map();
    page.names = given.map(({ path }) => path);
  }
  for (const [number, { path, file }] of given.entries()) {
    status.textContent = `Reading ${path} (${number + 1} of ${given.length})`;
    const found = await digestOfFile(file);
    const name = folder ? path : (pinned.get(found) ?? whole(path, [...pinned.values()]));
    page.files.set(name, {
      digest: found,
      size: file.size,
      bytes: async (start = 0, stop = file.size) =>
        new Uint8Array(await file.slice(start, stop).arrayBuffer()),
    });
  }
  await update();
  status.textContent = `${page.files.size} files read${page.names ? ", the whole folder" : ""}.`;
}

// A hint for naming single files, from a payload whose signature is checked elsewhere.
async function namesByDigest(attestation) {
  const { payload } = JSON.parse(new TextDecoder().decode(attestation));
  const bytes = Uint8Array.from(atob(payload), (c) => c.charCodeAt(0));
  const { subject, predicate } = JSON.parse(new TextDecoder().decode(bytes));
  return Object.fromEntries([
    ...subject.map((each) => [`sha256:${each.digest.sha256}`, each.name]),
    ...Object.entries(predicate.files).map(([name, each]) => [each, name]),
  ]);
}

const whole = (path, names) => {
  const found = names.filter((name) => name.split("/").pop() === path.split("/").pop());
  return found.length === 1 ? found[0] : path;
};

// The folder that was chosen is the model folder, or one that it lies in. Without an attestation in
// it, it is taken as single files: nothing can be said of what else lies there.
function inFolder(files) {
  const markers = files.filter(({ path }) => `/${path}`.endsWith(`/${FILES.attestation}`));
  if (!markers.length) return null;
  const least = markers.reduce((a, b) => (a.path.length <= b.path.length ? a : b)).path;
  const base = least.slice(0, -FILES.attestation.length);
  return files
    .filter(({ path }) => path.startsWith(base))
    .map(({ path, file }) => ({ path: path.slice(base.length), file }));
}

function given(files) {
  const folder = inFolder(files);
  return folder ? take(folder, true) : take(files, false);
}

byId("folder").addEventListener("change", (event) =>
  given([...event.target.files].map((file) => ({ path: file.webkitRelativePath, file }))),
);
byId("files").addEventListener("change", (event) =>
  take([...event.target.files].map((file) => ({ path: file.name, file })), false),
);
onDrop(byId("files-drop"), given);
byId("lists").addEventListener("change", async (event) => {
  const read = async (file) => new Uint8Array(await file.arrayBuffer());
  page.lists = await Promise.all([...event.target.files].map(read));
  await update();
});

const known = await loaded.catch(() => null);
if (known) {
  await rootControls(known.told.kinds, (root) => {
    page.root = root;
    return update();
  });
} else {
  await update();
}
place.dataset.ready = "yes";
