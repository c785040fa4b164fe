// The reader's trust root: from a file or pasted, remembered in this browser, never from a server.

import { fromBase64, toBase64, utf8 } from "./bytes.js";
import { byId } from "./dom.js";
import { Trust } from "./trust.js";

const KEY = "govray.trustRoot";

export const now = () => `${new Date().toISOString().slice(0, 19)}Z`;

export function pinned() {
  try {
    const stored = localStorage.getItem(KEY);
    return stored ? fromBase64(stored) : null;
  } catch {
    return null;
  }
}

function remember(bytes) {
  try {
    if (bytes) localStorage.setItem(KEY, toBase64(bytes));
    else localStorage.removeItem(KEY);
  } catch {
    // A browser that remembers nothing asks again next time.
  }
}

// A root never goes back: an older one names keys that its owner has withdrawn since.
async function refuseOlder(trust, kinds) {
  const bytes = pinned();
  if (!bytes) return;
  let kept;
  try {
    kept = (await Trust.load(bytes, kinds, now())).root;
  } catch {
    return; // expired since, or damaged: it protects nothing any more
  }
  if (kept.name === trust.root.name && kept.version > trust.root.version) {
    throw new Error(
      `version ${trust.root.version} is older than the pinned version ${kept.version}; ` +
        "forget that one first if its owner says so",
    );
  }
}

// Wire the controls of a page; calls `changed` with the root's bytes, or with null.
export function rootControls(kinds, changed) {
  const say = (text) => {
    byId("root-state").textContent = text;
  };
  const shown = (bytes) => {
    (byId("root-pinned") ?? byId("root-forget")).classList.toggle("hidden", !bytes);
  };
  const use = async (bytes) => {
    try {
      const trust = await Trust.load(bytes, kinds, now());
      await refuseOlder(trust, kinds);
      remember(bytes);
      say(`${trust.root.name} version ${trust.root.version}, pinned in this browser.`);
    } catch (error) {
      say(error.message);
    }
    shown(bytes);
    await changed(bytes);
  };
  const read = async (file) => {
    if (file.size > 1 << 20) say("larger than a trust root may be");
    else await use(new Uint8Array(await file.arrayBuffer()));
  };
  byId("root-file").addEventListener("change", async (event) => {
    if (event.target.files.length) await read(event.target.files[0]);
  });
  byId("root-use")?.addEventListener("click", () => use(utf8(byId("root-text").value.trim())));
  byId("root-forget").addEventListener("click", async () => {
    remember(null);
    byId("root-file").value = "";
    say("Forgotten.");
    shown(null);
    await changed(null);
  });
  const area = byId("root-drop");
  if (area) onDrop(area, (files) => files.length && read(files[0].file));
  const before = pinned();
  return before ? use(before) : changed(null);
}

// Files dropped on an element, those in folders with their paths.
export function onDrop(area, take) {
  area.addEventListener("dragover", (event) => {
    event.preventDefault();
    area.classList.add("over");
  });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", async (event) => {
    event.preventDefault();
    area.classList.remove("over");
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry());
    const files = [];
    for (const entry of entries) if (entry) files.push(...(await walk(entry, entry.name)));
    await take(files);
  });
}

async function walk(entry, path) {
  if (entry.isFile) {
    const file = await new Promise((done, failed) => entry.file(done, failed));
    return [{ path, file }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return found;
    for (const each of some) found.push(...(await walk(each, `${path}/${each.name}`)));
  }
}
