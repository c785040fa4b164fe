// Bytes: hex, canonical base64 (RFC 4648), SHA-256 (FIPS 180-4) and their comparison.
//
// SHA-256 is written out here, because WebCrypto's has no way to hash a file in pieces and takes a
// promise for every node of a Merkle tree. A test compares it with Python's.

const ENCODER = new TextEncoder();

export const utf8 = (text) => ENCODER.encode(text);

// Strict: throws at bytes that are no UTF-8, and keeps a byte order mark, which JSON refuses.
export const text = (bytes) =>
  new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);

export function concat(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export function equal(left, right) {
  return left.length === right.length && left.every((byte, i) => byte === right[i]);
}

export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function fromHex(digits) {
  if (!/^([0-9a-f]{2})*$/.test(digits)) throw new Error("not lowercase hex");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function toBase64(bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32768) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 32768));
  }
  return btoa(binary);
}

export function fromBase64(encoded) {
  let binary;
  try {
    binary = atob(encoded);
  } catch {
    throw new Error("not base64");
  }
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  if (toBase64(bytes) !== encoded) throw new Error("the base64 is not in its canonical form");
  return bytes;
}

// The first 32 bits of the fractional parts of the cube and square roots of the first primes.
const PRIMES = [];
for (let n = 2; PRIMES.length < 64; n += 1) if (PRIMES.every((p) => n % p)) PRIMES.push(n);
const fraction = (root) => ((root - Math.floor(root)) * 2 ** 32) | 0;
const K = Int32Array.from(PRIMES, (p) => fraction(Math.cbrt(p)));
const START = Int32Array.from(PRIMES.slice(0, 8), (p) => fraction(Math.sqrt(p)));

export class Sha256 {
  constructor() {
    this.state = START.slice();
    this.block = new Uint8Array(64);
    this.words = new Int32Array(64);
    this.length = 0;
  }

  update(bytes) {
    let at = 0;
    let used = this.length % 64;
    this.length += bytes.length;
    if (used) {
      const room = Math.min(64 - used, bytes.length);
      this.block.set(bytes.subarray(0, room), used);
      at = room;
      used += room;
      if (used < 64) return this;
      this.compress(this.block, 0);
    }
    for (; at + 64 <= bytes.length; at += 64) this.compress(bytes, at);
    this.block.set(bytes.subarray(at));
    return this;
  }

  digest() {
    const length = this.length;
    const tail = new Uint8Array((length % 64 < 56 ? 64 : 128) - (length % 64));
    const view = new DataView(tail.buffer);
    tail[0] = 0x80;
    view.setUint32(tail.length - 8, Math.floor(length / 2 ** 29));
    view.setUint32(tail.length - 4, (length << 3) >>> 0);
    this.update(tail);
    const out = new Uint8Array(32);
    this.state.forEach((word, i) => new DataView(out.buffer).setInt32(4 * i, word));
    return out;
  }

  compress(bytes, at) {
    const w = this.words;
    for (let i = 0; i < 16; i += 1, at += 4) {
      w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const x = w[i - 15];
      const y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    let [a, b, c, d, e, f, g, h] = this.state;
    for (let i = 0; i < 64; i += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => {
      this.state[i] = (this.state[i] + word) | 0;
    });
  }
}

export const sha256 = (...parts) => parts.reduce((h, part) => h.update(part), new Sha256()).digest();

export const digestOf = (bytes) => `sha256:${hex(sha256(bytes))}`;

// SHA-256 of a File or Blob, read in pieces, so that no file is too large for memory.
export async function digestOfFile(file, progress = () => {}) {
  const hash = new Sha256();
  const step = 4 << 20;
  for (let at = 0; at < file.size; at += step) {
    hash.update(new Uint8Array(await file.slice(at, at + step).arrayBuffer()));
    progress(Math.min(at + step, file.size));
  }
  return `sha256:${hex(hash.digest())}`;
}
