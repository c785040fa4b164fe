// The steps of the verifier, as far as a browser goes.
//
// Their numbers and names are those of `govray/governance/verify/steps.py`, which come with
// `kinds.json`. Here is what a browser does of each, by its number.
//
// A step says what it did, what it did not, and what it still needs. Its state follows from that
// alone (`state`): "checked" if it did everything, "partly" if it left something out.
//
// The files may come from anywhere, this server included: signatures and digests bind all but the
// trust root. The trust root is the reader's, or there is no verdict.

import { digestOf, equal, hex, text, utf8 } from "./bytes.js";
import { encode, parseCanonical } from "./canonical.js";
import { readStatement } from "./dsse.js";
import { Unsupported } from "./keys.js";
import { leafHash, rootOf } from "./merkle.js";
import { noteSigners, parseNote } from "./note.js";
import { checkTaint, everyRoute, groupsOf } from "./taint.js";
import { covers, Trust } from "./trust.js";

const G = "governance";
export const FILES = {
  policy: `${G}/policy.dsse.json`,
  manifest: `${G}/manifest.dsse.json`,
  credentials: `${G}/credentials.jsonl`,
  delegations: `${G}/delegations.jsonl`,
  ledger: `${G}/ledger.jsonl`,
  checkpoint: `${G}/ledger.checkpoint`,
  gates: `${G}/gates.jsonl`,
  replays: `${G}/replays.jsonl`,
  attestation: `${G}/attestation.dsse.json`,
};
// Signed by others than the operator, after the attestation. This page checks none of them: the
// steps 14 to 16 say so.
const BY_OUTSIDERS =
  /^governance\/(replay-[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.dsse\.json|timestamp-[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.tsr|ledger\.witnessed)$/;
const EMPTY = digestOf(new Uint8Array());

class Missing extends Error {}

export function state(step) {
  if (step.error) return step.unsupported ? "unsupported" : "failed";
  if (step.after) return "not-checked";
  if (step.needs.length && !step.did.length) return "waiting";
  if (!step.did.length) return "not-checked";
  return step.needs.length || step.not.length ? "partly" : "checked";
}

// Check what can be checked.
//   input.root: bytes of the reader's trust root, or null
//   input.attestation: bytes of the envelope
//   input.files: name in the model folder → { digest, bytes() }, what the reader gave or fetched
//   input.names: all names of the folder, if the reader gave a whole folder; else null
//   input.kinds: document kinds with their schemas; input.disclaimer: the fixed wording
//   input.steps: number and name of each step, in order
//   input.at: reference time as text
export async function check(input) {
  const run = { input, steps: [] };
  for (const { number, name } of input.steps) {
    const step = { number, did: [], not: [], needs: [] };
    run.steps.push(step);
    // Until the statement has been read, each step builds on those before it.
    const before = run.steps.find((each) => each.error || !(run.document || each.did.length));
    if (before && before !== step) {
      step.after = before.number;
      continue;
    }
    try {
      if (CHECKS[number]) await CHECKS[number](run, step);
      else step.not.push(name);
    } catch (error) {
      if (error instanceof Missing) step.needs.push(error.message);
      else {
        step.error = error.message;
        step.unsupported = error instanceof Unsupported;
      }
    }
  }
  return run;
}

// The bytes of a pinned file, once they have the digest that the attestation gives them.
async function pinned(run, name) {
  const digest = run.document.files[name];
  const file = run.input.files.get(name);
  if (digest === undefined) throw new Error(`the attestation does not pin ${name}`);
  if (digest === EMPTY) return new Uint8Array();
  if (!file) throw new Missing(name);
  const byStatement = name === FILES.manifest && digest === run.document.manifest
  if (file.digest !== digest && !byStatement) {
    throw new Error(`${name} is not the file that was attested`);
  }
  return file.bytes();
}

function lines(bytes, where) {
  const parts = [];
  let start = 0;
  for (let at = 0; at < bytes.length; at += 1) {
    if (bytes[at] !== 10) continue;
    if (at === start) throw new Error(`${where}: an empty line`);
    parts.push(bytes.subarray(start, at));
    start = at + 1;
  }
  if (start !== bytes.length) throw new Error(`${where}: the last line is cut off`);
  return parts;
}

const CHECKS = {
  1: trustRoot,
  2: signature,
  3: statement,
  4: files,
  5: policy,
  6: credentials,
  7: manifest,
  8: routes,
  10: ledger,
  11: coverage,
  12: assurance,
};

async function trustRoot(run, step) {
  run.rootStep = step;
  const { root, kinds, at, files: given } = run.input;
  if (!root) throw new Missing("the trust root, from its owner and not from this server");
  const delegations = given.get(FILES.delegations);
  const envelopes = delegations ? lines(await delegations.bytes(), FILES.delegations) : [];
  run.trust = await Trust.load(root, kinds, at, envelopes);
  const { name, version, threshold, expires } = run.trust.root;
  step.did.push(`root ${name} version ${version}, signed by ${threshold} or more of its own keys`);
  step.did.push(`it holds until ${expires}`);
  if (envelopes.length) step.did.push(`delegations: ${envelopes.length}, each only narrows`);
}

async function signature(run, step) {
  const { attestation, at } = run.input;
  const signed = await run.trust.soleSigner(attestation, "operator", [at], "attestation");
  run.attested = signed;
  const { name, threshold } = signed.authority;
  step.did.push(`${name} signed these bytes: ${signed.keyids.size} keys, ${threshold} needed`);
  step.did.push("no other signature is in the envelope");
}

function statement(run, step) {
  const { envelope } = run.attested;
  Object.assign(run.attested, readStatement(envelope, run.input.kinds.attestation, "attestation"));
  run.document = run.attested.document;
  const { document, attested, trust, input } = run;
  if (input.digest && attested.digest !== input.digest) {
    throw new Error(`this is another attestation, ${attested.digest}`);
  }
  step.did.push(`a provenance-coverage attestation, canonical, no unknown field: ${attested.digest}`);
  if (document.run.finished < document.run.started) throw new Error("it ended before it started");
  if (document.run.finished > input.at) throw new Error("the run finished after now");
  step.did.push(`the run ended at ${document.run.finished}, before now`);
  const named = document.trustRoot;
  if (named.name !== trust.root.name) throw new Error(`it was under the trust root ${named.name}`);
  if (named.version > trust.root.version) throw new Error("your trust root is an older version");
  if (named.version === trust.root.version && named.digest !== trust.digest) {
    throw new Error("another trust root of the same version was used");
  }
  step.did.push(`the trust root is the one it names, or a later one: version ${named.version}`);
  // Delegations belong to the trust root's step, which could not know yet that there are some.
  const delegations = document.files[FILES.delegations] ?? EMPTY;
  const given = input.files.get(FILES.delegations)?.digest ?? EMPTY;
  if (delegations !== EMPTY && given === EMPTY) run.rootStep.needs.push(FILES.delegations);
  else if (delegations !== given) {
    run.rootStep.error = `${FILES.delegations} is not the file that was attested`;
  }
}

function covered(name) {
  const path = name.toLowerCase();
  return (
    ["adapters", G].includes(path.split("/")[0]) ||
    path === "config.json" ||
    [".safetensors", ".bin", ".pt", ".pth"].some((suffix) => path.endsWith(suffix))
  );
}

function files(run, step) {
  const { document, attested, input } = run;
  const gone = new Set(document.removals.map((removal) => removal.adapter));
  const expected = new Set(["config.json", "model.safetensors"]);
  for (const { name } of document.adapters.filter((adapter) => !gone.has(adapter.name))) {
    expected.add(`adapters/${name}/adapter_config.json`);
    expected.add(`adapters/${name}/adapter_model.safetensors`);
  }
  for (const name of attested.subjects.keys()) {
    if (name.split("/")[0].toLowerCase() === G) throw new Error(`${name} is named as a model file`);
    if (covered(name) && !expected.has(name)) throw new Error(`the model has no file ${name}`);
  }
  for (const name of expected) {
    if (!attested.subjects.has(name)) throw new Error(`the attestation does not cover ${name}`);
  }
  const required = [FILES.policy, FILES.manifest, FILES.credentials, FILES.ledger, FILES.checkpoint];
  const known = new Set([...required, FILES.delegations, FILES.gates, FILES.replays]);
  const names = Object.keys(document.files);
  if (required.some((name) => !names.includes(name)) || names.some((name) => !known.has(name))) {
    throw new Error("the attestation pins the wrong governance files");
  }
  const digests = new Map([...attested.subjects, ...Object.entries(document.files)]);
  const own = input.files.get(FILES.attestation);
  if (own && own.digest !== digestOf(input.attestation)) {
    throw new Error("these files are of another attestation");
  }
  let same = 0;
  for (const [name, digest] of digests) {
    const file = input.files.get(name);
    if (!file) {
      if (input.names) throw new Error(`${name} is missing`);
      if (digest !== EMPTY) step.needs.push(name);
      continue;
    }
    const byStatement = name === FILES.manifest && digest === document.manifest
    if (file.digest !== digest && !byStatement) {
      throw new Error(`${name} is not the file that was attested`);
    }
    same += 1;
  }
  if (same) step.did.push(`${same} of ${digests.size} files have the attested SHA-256`);
  const further = (input.names ?? []).filter(
    (name) => !digests.has(name) && name !== FILES.attestation && !BY_OUTSIDERS.test(name),
  );
  for (const name of further) {
    if (covered(name)) throw new Error(`${name} is not covered by the attestation`);
  }
  if (input.names) {
    step.did.push("no other file stands where the model's tools would load it");
    if (further.length) step.did.push(`the attestation says nothing of: ${further.join(", ")}`);
  } else {
    step.not.push("whether further files lie in the folder: give the whole folder");
  }
}

async function policy(run, step) {
  const bytes = await pinned(run, FILES.policy);
  const { trust, document, input } = run;
  const times = [document.run.started, document.run.finished];
  const read = await trust.verify(bytes, input.kinds.policy, "policy", times, "policy");
  const found = read.document;
  const own = digestOf(utf8(encode(found)));
  if (read.subjects.size !== 1 || read.subjects.get(found.name) !== own) {
    throw new Error("the policy's subject is not the policy");
  }
  const named = document.policy;
  if (named.name !== found.name || named.version !== found.version || named.digest !== read.digest) {
    throw new Error("the policy is not the one that was attested");
  }
  step.did.push(`${found.name} version ${found.version}, signed by ${read.authority.name}`);
  if (found.version < trust.minimumPolicyVersion(found.name)) {
    throw new Error("older than the trust root accepts");
  }
  if (times.some((at) => at < found.valid.from || at >= found.valid.until)) {
    throw new Error(`in force from ${found.valid.from} to ${found.valid.until}, not during the run`);
  }
  step.did.push("not older than the trust root allows, in force when the run started and ended");
  step.not.push("that its rules agree with each other");
}

async function credentials(run, step) {
  const bytes = await pinned(run, FILES.credentials);
  const { trust, document, input } = run;
  const gated = document.files[FILES.gates] !== undefined;
  const times = gated ? [document.run.started] : [document.run.started, document.run.finished];
  run.credentials = new Map();
  for (const line of lines(bytes, FILES.credentials)) {
    const read = await trust.verify(line, input.kinds.credential, "credential", times, "credential");
    const found = read.document;
    const where = `credential of ${found.corpus}`;
    if (read.subjects.size !== 1 || read.subjects.get(found.corpus) !== found.records.root) {
      throw new Error(`${where}: its subject is not the corpus`);
    }
    const issuer = read.authorities.find(({ authority }) => authority.name === found.issuer);
    if (!issuer) throw new Error(`${where}: its issuer did not sign it`);
    if (!covers(issuer.authority, found)) throw new Error(`${where}: outside its issuer's scope`);
    if (times.some((at) => at < found.valid.from || at >= found.valid.until)) {
      throw new Error(`${where}: not valid when the run used it`);
    }
    if (run.credentials.has(found.corpus)) throw new Error(`${where}: there are two`);
    run.credentials.set(found.corpus, read);
  }
  const attested = new Map(document.corpora.map((each) => [each.corpus, each.credential]));
  for (const name of new Set([...attested.keys(), ...run.credentials.keys()])) {
    if (run.credentials.get(name)?.digest !== attested.get(name)) {
      throw new Error(`the credential of ${name} is not the one that was attested`);
    }
  }
  step.did.push(`${run.credentials.size} credentials, signed within their issuers' scope`);
  step.did.push("valid when the run started" + (gated ? "" : " and when it ended"));
  step.did.push("exactly those that were attested");
  step.not.push("that licence categories follow from the SPDX expressions");
  if (gated) step.not.push("that each credential held for as long as its corpus was used");
}

async function manifest(run, step) {
  const bytes = await pinned(run, FILES.manifest);
  const { trust, document, input } = run;
  const read = await trust.verify(bytes, input.kinds.manifest, "operator", [input.at], "manifest");
  if (read.digest !== document.manifest) throw new Error("not the manifest that was attested");
  if (encode(read.document.quarantine) !== encode(document.quarantine)) {
    throw new Error("the quarantine is not the manifest's");
  }
  step.did.push(`signed by ${read.authority.name}; the quarantine is the manifest's`);
  if (!run.credentials) throw new Missing(FILES.credentials);
  const prepared = new Map(read.document.corpora.map((each) => [each.corpus, each]));
  for (const name of new Set([...prepared.keys(), ...run.credentials.keys()])) {
    const [entry, credential] = [prepared.get(name), run.credentials.get(name)];
    if (!entry || !credential) throw new Error(`${name} is not in both manifest and credentials`);
    const stated = credential.document;
    const count = entry.parts.at(-1)?.records[1] ?? 0;
    if (entry.commitment !== stated.records.commitment) throw new Error(`${name}: another commitment`);
    if (entry.credential !== credential.digest) throw new Error(`${name}: another credential`);
    if (entry.classDigest !== classDigest(stated)) throw new Error(`${name}: another class`);
    if (String(count) !== stated.records.count) throw new Error(`${name}: other records`);
  }
  step.not.push("the records, which stand in the prepared folder: their counts are the signer's");
  step.not.push("how records were packed into rows, and the reserve");
}

// A class as its issuer states it. What a description leaves out is not in the class.
function classDigest({ corpus, jurisdiction, license, licenseCategory, sensitivity, use, description }) {
  const { source, modality, languages, optOut, personalData } = description ?? {};
  const described = { source, modality, languages, optOut, personalData };
  const stated = Object.entries(described).filter(([, value]) => value !== undefined);
  const own = { corpus, jurisdiction, license, licenseCategory, sensitivity, use };
  const seen = { ...own, ...Object.fromEntries(stated) };
  return digestOf(utf8(encode(seen)));
}

async function routes(run, step) {
  const { document, attested, input } = run;
  const expected = new Map([
    [
      "model.safetensors",
      [...document.groups.flatMap((group) => group.parameters), ...document.buffers],
    ],
    ...document.adapters.map(({ name, tensors }) => [
      `adapters/${name}/adapter_model.safetensors`,
      tensors,
    ]),
  ]);
  for (const [name, tensors] of expected) {
    const file = input.files.get(name);
    if (!attested.subjects.has(name)) continue;
    if (!file) {
      step.needs.push(name);
      continue;
    }
    const found = await tensorNames(file, name);
    if (found.join("\n") !== [...new Set(tensors)].sort().join("\n")) {
      throw new Error(`${name}: its tensors are not those of the layer groups`);
    }
    step.did.push(`the ${found.length} tensors of ${name} are those that were attested`);
  }
  step.not.push("that rules, routes and domains follow from policy and credentials");
}

async function tensorNames(file, name) {
  const head = await file.bytes(0, 8);
  if (head.length < 8) throw new Error(`${name}: no safetensors file`);
  const size = Number(new DataView(head.buffer, head.byteOffset).getBigUint64(0, true));
  if (!(size > 0 && size <= 64 << 20)) throw new Error(`${name}: a header of ${size} bytes`);
  const header = JSON.parse(text(await file.bytes(8, 8 + size)));
  return Object.keys(header)
    .filter((each) => each !== "__metadata__")
    .sort();
}

async function ledger(run, step) {
  const [bytes, note] = [await pinned(run, FILES.ledger), await pinned(run, FILES.checkpoint)];
  const { document, attested } = run;
  const found = lines(bytes, FILES.ledger);
  const root = rootOf(found.map(leafHash));
  const head = document.ledger;
  const origin = `govray.dev/ledger/${document.run.id}`;
  if (head.origin !== origin || head.size !== String(found.length)) {
    throw new Error("origin or size are not those of the ledger");
  }
  if (head.root !== `sha256:${hex(root)}`) throw new Error("the root is not that of the ledger");
  step.did.push(`the Merkle root of ${found.length} ledger lines is the attested one`);
  const checkpoint = parseNote(note);
  if (checkpoint.origin !== origin || checkpoint.size !== found.length) {
    throw new Error("the checkpoint is of another ledger");
  }
  if (!equal(checkpoint.root, root)) throw new Error("the checkpoint has another root");
  const signers = attested.authority.loaded.filter((key) => attested.keyids.has(key.keyid));
  if (!(await noteSigners(checkpoint, signers)).length) {
    throw new Error("no key that signed the attestation signed the checkpoint");
  }
  step.did.push("a key that signed the attestation signed the same size and root");
  run.leaves = found.map((line, i) => parseCanonical(line, `ledger line ${i + 1}`));
  step.not.push("that ranges, counts, norms, profiles and branches follow from plan and policy");
}

// The routes of a corpus by what a ledger's leaf calls them: undefined is the corpus's own.
function routesByDigest(entry) {
  const [own, ...others] = everyRoute(entry);
  const named = others.map((route) => [digestOf(utf8(encode(route))), route]);
  return new Map([[undefined, own], ...named]);
}

async function coverage(run, step) {
  const { document } = run;
  checkTaint(document);
  step.did.push("direct and transitive taint follow from the attested routes and domains");
  if (!run.leaves) throw new Missing(FILES.ledger);
  const routes = new Map(document.corpora.map((each) => [each.corpus, routesByDigest(each)]));
  const due = new Map();
  for (const leaf of run.leaves) {
    if (leaf.kind !== undefined) continue;
    if (leaf.policy !== document.policy.digest) throw new Error("a step was under another policy");
    for (const [corpus, use] of Object.entries(leaf.corpora)) {
      const route = routes.get(corpus)?.get(use.route);
      if (!route) throw new Error(`rows of ${corpus} took a route that the attestation does not have`);
      for (const group of groupsOf(route)) {
        const place = `${corpus}\n${group}`;
        const { tokens, steps } = due.get(place) ?? { tokens: 0n, steps: 0 };
        due.set(place, { tokens: tokens + BigInt(use.targets), steps: steps + 1 });
      }
    }
  }
  for (const entry of document.coverage) {
    const place = `${entry.corpus}\n${entry.group}`;
    const found = due.get(place);
    due.delete(place);
    if (!found || entry.tokens !== String(found.tokens) || entry.steps !== String(found.steps)) {
      throw new Error(`the tokens of ${entry.corpus} in ${entry.group} are not the ledger's`);
    }
  }
  if (due.size) throw new Error(`coverage leaves out ${[...due.keys()][0].split("\n")[0]}`);
  step.did.push(`${document.coverage.length} totals of tokens and steps, counted again from the ledger`);
  step.not.push("record counts, weighted tokens, gradient-norm shares and levels");
  if (document.replays.length) step.not.push("who ran the replays that levels rest on");
}

function assurance(run, step) {
  if (run.document.assuranceLevel !== "selfAttested") {
    throw new Error(`it claims ${run.document.assuranceLevel}, which nothing here shows`);
  }
  step.did.push("it claims selfAttested and no more");
  if (run.document.disclaimer !== run.input.disclaimer) throw new Error("the wording was changed");
  step.did.push("the disclaimer is word for word");
}
