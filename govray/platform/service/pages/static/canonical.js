// Strict JSON in, RFC 8785 out; the rules of `govray/governance/formats/canonical_json.py`.
//
// Text is accepted if writing its value again gives the same text. That refuses repeated keys,
// white space, other number forms and other escapes; what it would let through is refused by name.

import { text } from "./bytes.js";

const MAX_BYTES = 64 * 1024 * 1024;
const MAX_DEPTH = 64;

export function parseCanonical(bytes, where = "JSON") {
  if (bytes.length > MAX_BYTES) throw new Error(`${where}: larger than ${MAX_BYTES} bytes`);
  let source;
  let value;
  try {
    source = text(bytes);
    value = JSON.parse(source);
  } catch {
    throw new Error(`${where}: not JSON in UTF-8`);
  }
  if (encode(value, where) !== source) {
    throw new Error(`${where}: the JSON is not in its canonical form (RFC 8785)`);
  }
  return value;
}

export function encode(value, where = "JSON", depth = 0) {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "string") {
    if (!value.isWellFormed()) throw new Error(`${where}: a lone surrogate`);
    return JSON.stringify(value);
  }
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new Error(`${where}: a number is not finite`);
    if (Math.abs(value) > Number.MAX_SAFE_INTEGER && Math.abs(value) < 1e21) {
      throw new Error(`${where}: a number exceeds 2^53 - 1`);
    }
    return JSON.stringify(value);
  }
  if (depth === MAX_DEPTH) throw new Error(`${where}: nested deeper than ${MAX_DEPTH}`);
  if (Array.isArray(value)) {
    return `[${value.map((item) => encode(item, where, depth + 1)).join(",")}]`;
  }
  // The default order of JavaScript is by UTF-16 code units, as RFC 8785 asks.
  const members = Object.keys(value).sort();
  return `{${members
    .map((key) => `${encode(key, where)}:${encode(value[key], where, depth + 1)}`)
    .join(",")}}`;
}
