// Merkle trees over SHA-256 (RFC 9162 section 2.1): roots, and inclusion from C2SP tlog tiles.

import { equal, sha256 } from "./bytes.js";

const LEAF = Uint8Array.of(0);
const NODE = Uint8Array.of(1);
const SIZE = 32;
const WIDTH = 256;
const HEIGHT = 8;

export const leafHash = (leaf) => sha256(LEAF, leaf);
export const nodeHash = (left, right) => sha256(NODE, left, right);

// The root of the leaves' hashes: one pass, with one pending subtree for each bit of the count.
export function rootOf(hashes) {
  const pending = [];
  let count = 0;
  for (const hash of hashes) {
    let node = hash;
    for (let bits = count; bits % 2; bits = Math.floor(bits / 2)) {
      node = nodeHash(pending.pop(), node);
    }
    pending.push(node);
    count += 1;
  }
  if (!count) return sha256(new Uint8Array());
  let root = pending.pop();
  while (pending.length) root = nodeHash(pending.pop(), root);
  return root;
}

// RFC 9162 section 2.1.3.2. Sizes may pass 2^32, so halves are divisions, not shifts.
export function verifyInclusion(leaf, index, size, proof, root) {
  if (!(index >= 0 && index < size)) throw new Error(`a tree of ${size} has no entry ${index}`);
  let node = index;
  let last = size - 1;
  let found = leaf;
  for (const sibling of proof) {
    if (sibling.length !== SIZE) throw new Error("a hash of the proof is not 32 bytes");
    if (last === 0) throw new Error("the proof has too many hashes");
    if (node % 2 || node === last) {
      found = nodeHash(sibling, found);
      while (node % 2 === 0 && node) {
        node = node / 2;
        last = Math.floor(last / 2);
      }
    } else {
      found = nodeHash(found, sibling);
    }
    node = Math.floor(node / 2);
    last = Math.floor(last / 2);
  }
  if (last !== 0) throw new Error("the proof has too few hashes");
  if (!equal(found, root)) throw new Error("the proof leads to another root");
}

// PATH(index, size) from tiles: `tile(level, n, width)` gives that tile's hashes. Only hashes of
// full subtrees are read, so O(log size) tiles. Returns the proof, from the leaf upwards.
export async function proofFromTiles(index, size, tile) {
  const cache = new Map();
  const hashAt = async (level, position) => {
    const [tileLevel, inside] = [Math.floor(level / HEIGHT), level % HEIGHT];
    const span = 2 ** inside;
    const first = position * span;
    const number = Math.floor(first / WIDTH);
    const entries = Math.floor(size / 2 ** (HEIGHT * tileLevel));
    const width = Math.min(WIDTH, entries - number * WIDTH);
    const key = `${tileLevel}/${number}/${width}`;
    if (!cache.has(key)) {
      const bytes = await tile(tileLevel, number, width);
      if (bytes.length !== width * SIZE) throw new Error(`tile ${key} has another size`);
      cache.set(key, bytes);
    }
    const at = (first % WIDTH) * SIZE;
    const bytes = cache.get(key).subarray(at, at + span * SIZE);
    const hashes = Array.from({ length: span }, (_, i) => bytes.subarray(i * SIZE, (i + 1) * SIZE));
    return rootOf(hashes);
  };
  // The root of leaves [start, stop), whose start is a multiple of a power of two above its size.
  const rangeRoot = async (start, stop) => {
    const parts = [];
    for (let at = start; at < stop; ) {
      let level = 0;
      while (at % 2 ** (level + 1) === 0 && at + 2 ** (level + 1) <= stop) level += 1;
      parts.push(await hashAt(level, at / 2 ** level));
      at += 2 ** level;
    }
    let root = parts.pop();
    while (parts.length) root = nodeHash(parts.pop(), root);
    return root;
  };
  const path = [];
  let [start, stop] = [0, size];
  while (stop - start > 1) {
    let half = 1;
    while (half * 2 < stop - start) half *= 2;
    const middle = start + half;
    if (index < middle) {
      path.push(await rangeRoot(middle, stop));
      stop = middle;
    } else {
      path.push(await rangeRoot(start, middle));
      start = middle;
    }
  }
  return path.reverse();
}

// The path of a tile, as tlog-tiles writes it: three digits a folder, `x` before all but the last.
export function tilePath(level, number, width) {
  let text = String(number % 1000).padStart(3, "0");
  for (let rest = Math.floor(number / 1000); rest; rest = Math.floor(rest / 1000)) {
    text = `x${String(rest % 1000).padStart(3, "0")}/${text}`;
  }
  return `tile/${level}/${text}${width < WIDTH ? `.p/${width}` : ""}`;
}

