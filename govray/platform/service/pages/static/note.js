// Signed checkpoints: C2SP signed-note and tlog-checkpoint, as `govray/governance/formats/signed_note.py` reads
// them. Signatures by unknown keys are ignored; a bad one by a known key refuses the note.

import { concat, equal, fromBase64, sha256, text, utf8 } from "./bytes.js";
import { verifies } from "./keys.js";

const NAME = /^[^\s+\u0000-\u001f]+$/u;
const SIZE = /^(0|[1-9][0-9]{0,18})$/;

export function parseNote(bytes) {
  if (bytes.length > 64 * 1024) throw new Error("the checkpoint is larger than 64 KiB");
  const note = text(bytes);
  if (/[\u0000-\u0009\u000b-\u001f]/.test(note)) throw new Error("a control character");
  const cut = note.lastIndexOf("\n\n");
  if (cut < 0 || !note.endsWith("\n")) throw new Error("no text, blank line and signatures");
  const body = note.slice(0, cut + 1);
  const lines = note.slice(cut + 2, -1).split("\n");
  if (lines.length > 16) throw new Error("more than 16 signatures");
  const parts = body.slice(0, -1).split("\n");
  if (parts.length !== 3) throw new Error("the text is not origin, size and root");
  const [origin, size, root] = parts;
  if (!NAME.test(origin) || !SIZE.test(size)) throw new Error("a bad origin or size");
  if (!Number.isSafeInteger(Number(size))) throw new Error("too large a tree for this page");
  const hash = fromBase64(root);
  if (hash.length !== 32) throw new Error("the root is not 32 bytes");
  return { body, origin, size: Number(size), root: hash, signatures: lines.map(signature) };
}

function signature(line) {
  const [, name, encoded] = /^— (\S+) (\S+)$/u.exec(line) ?? [];
  if (!name || !NAME.test(name)) throw new Error("a signature line has another form");
  const signed = fromBase64(encoded);
  if (signed.length <= 4) throw new Error("a signature line holds no signature");
  return { name, id: signed.subarray(0, 4), sig: signed.subarray(4) };
}

const keyId = (name, key) =>
  key.algorithm === "ed25519"
    ? sha256(concat(utf8(`${name}\n`), Uint8Array.of(1), key.raw)).subarray(0, 4)
    : sha256(key.der).subarray(0, 4);

// Which of the keys signed the note under its own origin. Throws at a bad signature by one.
export async function noteSigners(note, keys) {
  const found = [];
  for (const key of keys) {
    const id = keyId(note.origin, key);
    const ours = note.signatures.filter(
      (each) => each.name === note.origin && equal(each.id, id),
    );
    for (const { sig } of ours) {
      if (!(await verifies(key, utf8(note.body), sig))) {
        throw new Error("a signature of the checkpoint does not verify");
      }
    }
    if (ours.length) found.push(key);
  }
  return found;
}
