// A view of an attestation, checked against the reader's trust root.
//
// The steps are those of `verify_view` in `govray/evidence/views/view.py`. A view shows what its signer
// stated; what is not in it was withheld, or was never there.

import { fromHex, utf8 } from "./bytes.js";
import { encode, parseCanonical } from "./canonical.js";
import { readStatement } from "./dsse.js";
import { leafHash, verifyInclusion } from "./merkle.js";
import { validate } from "./schema.js";
import { Trust } from "./trust.js";

const NAMES = "names";
const PSEUDONYM = /^name-[0-9a-f]{32}$/;
const OF_WHOLE_MODEL = ["disclaimer", "assuranceLevel", "attestation"];
const MAX_ENVELOPE = 1 << 20;

// What the view in `bytes` shows, if all of it holds; else an error that says what does not.
//   root: bytes of the reader's trust root
//   kinds, view: schemas, and disclaimer: the fixed wording, all from `kinds.json`
//   at: reference time as text
export async function checkView(bytes, { root, kinds, view, disclaimer, at }) {
  const given = parseCanonical(bytes, "view");
  validate(given, view, "view");
  const [signed, ...delegations] = [given.disclosure, ...given.delegations].map(utf8);
  if ([signed, ...delegations].some((each) => each.length > MAX_ENVELOPE)) {
    throw new Error("view: an envelope is larger than 1 MiB");
  }
  // 1
  const trust = await Trust.load(root, kinds, at, delegations);
  const found = await trust.soleSigner(signed, "operator", [at], "disclosure");
  const { document, subjects } = readStatement(found.envelope, kinds.disclosure, "disclosure");
  // 2
  const tree = fromHex(document.root.replace("sha256:", ""));
  const places = new Set();
  const indices = new Set();
  for (const { leaf, index, path } of given.leaves) {
    const named = `leaf ${index} (${leaf.field})`;
    try {
      const hash = leafHash(utf8(encode(leaf)));
      verifyInclusion(hash, index, document.leaves, path.map(fromHex), tree);
    } catch (error) {
      throw new Error(`${named}: it is not among what the operator signed: ${error.message}`);
    }
    const place = encode([leaf.field, leaf.corpus ?? "", leaf.group ?? ""]);
    if (indices.has(index) || places.has(place)) throw new Error(`${named}: it stands twice`);
    indices.add(index);
    places.add(place);
  }
  // 3
  const stated = new Map();
  for (const { leaf } of given.leaves.filter((each) => OF_WHOLE_MODEL.includes(each.leaf.field))) {
    if (leaf.corpus !== undefined || leaf.group !== undefined) {
      throw new Error(`${leaf.field} is stated of one corpus or layer group, and is the model's`);
    }
    stated.set(leaf.field, leaf.value);
  }
  if (stated.get("disclaimer") !== disclaimer) {
    throw new Error("the disclaimer is missing, or its wording was changed");
  }
  if (stated.get("assuranceLevel") !== "selfAttested") {
    throw new Error("a view shows no more than selfAttested");
  }
  const names = namesOf(given.leaves);
  return {
    facts: factsOf(given.leaves, names),
    names,
    shown: given.leaves.length,
    leaves: document.leaves,
    signer: found.authority.name,
    keyids: [...found.keyids].sort(),
    trust: trust.root,
    weights: [...subjects],
  };
}

// Pseudonym → name, of the names that may be read.
function namesOf(leaves) {
  const names = new Map();
  for (const { leaf } of leaves.filter((each) => each.leaf.field === NAMES)) {
    if (leaf.corpus === undefined || typeof leaf.value !== "string") {
      throw new Error("a name is no text");
    }
    if (!PSEUDONYM.test(leaf.corpus)) {
      throw new Error(`'${leaf.corpus}' is no pseudonym for a name`);
    }
    names.set(leaf.corpus, leaf.value);
  }
  return names;
}

// The facts with these names in place of their pseudonyms, sorted by field, corpus and group.
function factsOf(leaves, names) {
  const spelled = [...names.keys()].map((name) => name.replace(/[.]/g, "\\$&"));
  const pseudonym = new RegExp(`(?<![A-Za-z0-9])(?:${spelled.join("|")})(?![A-Za-z0-9])`, "g");
  const replaced = (text) =>
    names.size && text ? text.replace(pseudonym, (match) => names.get(match)) : text;
  const mapped = (value) => {
    if (typeof value === "string") return replaced(value);
    if (Array.isArray(value)) return value.map(mapped);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, each]) => [replaced(key), mapped(each)]),
    );
  };
  const key = (fact) => [fact.field, fact.corpus ?? "", fact.group ?? ""];
  return leaves
    .filter(({ leaf }) => leaf.field !== NAMES)
    .map(({ leaf: { field, corpus, group, value } }) => ({
      field,
      corpus: replaced(corpus),
      group: replaced(group),
      value: mapped(value),
    }))
    .sort((a, b) => {
      const at = key(a).findIndex((part, i) => part !== key(b)[i]);
      return at < 0 ? 0 : key(a)[at] < key(b)[at] ? -1 : 1;
    });
}
