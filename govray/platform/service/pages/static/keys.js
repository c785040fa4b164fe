// Public keys: Ed25519 (RFC 8032) and ECDSA P-256 with SHA-256, checked by WebCrypto.
//
// As in `govray/governance/formats/keys.py`, a key has one DER encoding, and Ed25519 points of small
// order are refused. What the browser cannot check is an error of its own kind, never a "no".

import { concat, equal, fromBase64, fromHex, hex, sha256 } from "./bytes.js";

export class Unsupported extends Error {}

const ED25519 = fromHex("302a300506032b6570032100");
const P256 = fromHex("3059301306072a8648ce3d020106082a8648ce3d03010703420004");
const FIELD = 2n ** 255n - 19n;
const ORDER_8_Y = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
const SMALL = new Set([0n, 1n, FIELD - 1n, ORDER_8_Y, FIELD - ORDER_8_Y]);

const FORMS = {
  ed25519: { prefix: ED25519, size: 32, import: "Ed25519", verify: "Ed25519" },
  "ecdsa-p256": {
    prefix: P256,
    size: 64,
    import: { name: "ECDSA", namedCurve: "P-256" },
    verify: { name: "ECDSA", hash: "SHA-256" },
  },
};

export async function loadKey({ algorithm, spki }) {
  const form = FORMS[algorithm];
  const der = fromBase64(spki);
  const { length } = form.prefix;
  if (der.length !== length + form.size || !equal(der.subarray(0, length), form.prefix)) {
    throw new Error(`a key is no canonical SubjectPublicKeyInfo of ${algorithm}`);
  }
  const raw = der.subarray(length);
  if (algorithm === "ed25519") refuseWeak(raw);
  if (!globalThis.crypto?.subtle) {
    throw new Unsupported("This browser gives a page without HTTPS no WebCrypto.");
  }
  let handle;
  try {
    handle = await crypto.subtle.importKey("spki", der, form.import, false, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") {
      throw new Unsupported(`This browser's WebCrypto has no ${algorithm}.`);
    }
    throw new Error(`a key is not a point of ${algorithm}`);
  }
  return { algorithm, raw, der, handle, form, keyid: hex(sha256(der)) };
}

function refuseWeak(raw) {
  const y = BigInt(`0x${hex(raw.slice().reverse())}`) & (2n ** 255n - 1n);
  if (y >= FIELD || SMALL.has(y)) throw new Error("a key's Ed25519 point has small order");
}

export async function verifies(key, message, signature) {
  let bytes = signature;
  if (key.algorithm === "ecdsa-p256") {
    bytes = fromDer(signature);
    if (bytes === null) return false;
  }
  return crypto.subtle.verify(key.form.verify, key.handle, bytes, message);
}

// SEQUENCE of two INTEGERs (DER) to the fixed 64 bytes that WebCrypto reads; null if malformed.
function fromDer(der) {
  if (der.length < 8 || der.length > 72 || der[0] !== 0x30 || der[1] !== der.length - 2) {
    return null;
  }
  const numbers = [];
  let at = 2;
  while (at < der.length && numbers.length < 2) {
    const size = der[at + 1];
    const number = der.subarray(at + 2, at + 2 + size);
    if (der[at] !== 0x02 || !size || number.length !== size || number[0] & 0x80) return null;
    if (size > 1 && number[0] === 0 && !(number[1] & 0x80)) return null;
    const plain = number[0] === 0 ? number.subarray(1) : number;
    if (plain.length > 32) return null;
    numbers.push(concat(new Uint8Array(32 - plain.length), plain));
    at += 2 + size;
  }
  return at === der.length && numbers.length === 2 ? concat(...numbers) : null;
}
