// The page that checks a view: the reader's root and the file in, what it shows out.

import { byId, element, fetchJson } from "./dom.js";
import { now, onDrop, rootControls } from "./pinned.js";
import { checkView } from "./view_check.js";

const MAX_BYTES = 64 * 1024 * 1024;
const page = { root: null, file: null, running: 0 };
const known = await fetchJson("/static/kinds.json");

async function update() {
  page.running += 1;
  const mine = page.running;
  const waiting = [[page.root, "the trust root"], [page.file, "a view"]]
    .filter(([given]) => !given)
    .map(([, name]) => name);
  let found = null;
  let said = ["", `Waiting for ${waiting.join(" and ")}. Nothing was checked.`];
  if (!waiting.length) {
    try {
      found = await read(page.file);
      const { signer, shown, leaves } = found;
      said = ["good", `Verified: ${signer} signed what is shown, ${shown} of ${leaves} leaves.`];
    } catch (error) {
      said = ["bad", `Refused. ${error.message}`];
    }
  }
  if (mine !== page.running) return;
  [byId("verdict").className, byId("verdict").textContent] = [`note ${said[0]}`, said[1]];
  byId("shown").classList.toggle("hidden", !found);
  if (found) show(found);
}

async function read(file) {
  if (file.size > MAX_BYTES) throw new Error("It is larger than a view may be, 64 MiB.");
  const bytes = new Uint8Array(await file.arrayBuffer());
  return checkView(bytes, { ...known, root: page.root, at: now() });
}

function show({ facts, names, keyids, leaves, shown, trust, weights }) {
  const told = [
    ["Model", weights.map(([name, digest]) => `${name} ${digest}`).join(", ")],
    ["Trust root", `${trust.name} version ${trust.version}, until ${trust.expires}`],
    ["Keys", keyids.join(", ")],
    ["Names shown", [...names.values()].sort().join(", ") || "none"],
    ["Withheld", `${leaves - shown} of ${leaves} leaves, padding included`],
  ];
  byId("about").replaceChildren(
    ...told.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
  byId("facts").replaceChildren(
    ...facts.map(({ field, corpus, group, value }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, field),
        element("td", {}, corpus ?? ""),
        element("td", {}, group ?? ""),
        element("td", { class: "mono" }, typeof value === "string" ? value : JSON.stringify(value)),
      ),
    ),
  );
}

function take(file) {
  page.file = file;
  return update();
}

byId("view-file").addEventListener("change", (event) => {
  if (event.target.files.length) return take(event.target.files[0]);
});
onDrop(byId("view-drop"), (files) => files.length && take(files[0].file));
await rootControls(known.kinds, (root) => {
  page.root = root;
  return update();
});
byId("verifier").dataset.ready = "yes";
