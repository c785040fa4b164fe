// The steps of the verifier, as far as a browser goes.
//
// Their numbers and names are those of `govray/governance/verify/steps.py`, which come with
// `kinds.json`. Here is what a browser does of each, by its number. The other steps are left to
// `govray verify`.
//
// A step says what it did, what it did not, and what it still needs. Its state follows from that
// alone (`state`): "checked" if it did everything, "partly" if it left something out.
//
// The files may come from anywhere, this server included: signatures and digests bind all but the
// trust root. The trust root is the reader's, or there is no verdict.

import { digestOf, text, utf8 } from "./bytes.js";
import { encode } from "./canonical.js";
import { readStatement } from "./dsse.js";
import { Unsupported } from "./keys.js";
import { Names } from "./names.js";
import { ofAttestation, ofCredential, ofPolicy, readLists, stale } from "./revocations.js";
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
const EMA = "ema.safetensors";
const EMPTY = digestOf(new Uint8Array());

class Missing extends Error {}

export function state(step) {
  if (step.error) return step.unsupported ? "unsupported" : "failed";
  if (!ORDER.some(([number]) => number === step.number)) return "not-checked";
  if (!step.did.length) return "waiting";
  return step.needs.length || step.not.length ? "partly" : "checked";
}

// Check what can be checked.
//   input.root: bytes of the reader's trust root, or null
//   input.lists: bytes of each revocation list that the reader has
//   input.attestation: bytes of the envelope; input.digest: of its statement, if that is known
//   input.files: name in the model folder → { digest, size, bytes() }, what the reader gave
//   input.names: all names of the folder, if the reader gave a whole folder; else null
//   input.known: `kinds.json`
//   input.at: reference time as text
export async function check(input) {
  const { kinds, names, steps } = input.known;
  const run = { input, kinds, names: new Names(names), steps: [] };
  for (const { number, name } of steps) {
    const not = ORDER.some(([each]) => each === number) ? [] : [name];
    run.steps.push({ number, did: [], not, needs: [] });
  }
  for (const [number, does] of ORDER) {
    const step = run.steps[number - 1];
    // Nothing rests on what failed, and everything on the trust root.
    const before = run.steps.find((each) => each.error) ?? (run.trust ? null : run.steps[0]);
    if (before && number > 1) {
      if (before !== step) step.after = before.number;
      continue;
    }
    try {
      await does(run, step);
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
  if (file.digest !== digest) throw new Error(`${name} is not the file that was attested`);
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

async function trustRoot(run, step) {
  const { root, at, files: given } = run.input;
  if (!root) throw new Missing("the trust root, from its owner and not from this server");
  const delegations = given.get(FILES.delegations);
  const envelopes = delegations ? lines(await delegations.bytes(), FILES.delegations) : [];
  run.trust = await Trust.load(root, run.kinds, at, envelopes);
  const { name, version, threshold, expires } = run.trust.root;
  step.did.push(`root ${name} version ${version}, signed by ${threshold} or more of its own keys`);
  step.did.push(`it holds until ${expires}`);
  if (envelopes.length) step.did.push(`delegations: ${envelopes.length}, each only narrows`);
}

async function lists(run) {
  run.lists = await readLists(run.trust, run.input.lists, run.input.at);
}

async function signature(run, step) {
  const { attestation, at } = run.input;
  const signed = await run.trust.soleSigner(attestation, "operator", [at], "attestation");
  const read = readStatement(signed.envelope, run.kinds.attestation, "attestation");
  run.attested = { ...signed, ...read };
  run.document = read.document;
  wellFormed(run.document.execution);
  const { name, threshold } = signed.authority;
  step.did.push(`${name} signed these bytes: ${signed.keyids.size} keys, ${threshold} needed`);
  step.did.push("no other signature is in the envelope");
}

// What the schema can't say of an execution.
function wellFormed({ submission, user, project, submitted, policy: under, code, isolation }) {
  const told = [submission, user, project, submitted].filter((each) => each !== undefined).length;
  if (told % 4 || (under && !told)) throw new Error("half a submission");
  const added = code.archive ?? code.setup?.pip ?? code.setup?.uvLock;
  if (code.origin === "deployment" && (added || isolation !== "run")) {
    throw new Error("it is not the deployment's own code alone");
  }
}

function statement(run, step) {
  const { document, attested, trust, input } = run;
  const { id, started, finished } = document.run;
  if (input.digest && attested.digest !== input.digest) {
    throw new Error(`this is another attestation, ${attested.digest}`);
  }
  step.did.push(`a provenance-coverage attestation, canonical, no unknown field: ${attested.digest}`);
  if (finished < started) throw new Error("it ended before it started");
  if (finished > input.at) throw new Error("the run finished after now");
  for (const { adapter, removed } of document.removals) {
    if (removed < finished || removed > input.at) {
      throw new Error(`adapter ${adapter} was removed before the run ended, or after now`);
    }
  }
  step.did.push(`run ${id} ended at ${finished}, before now`);
  const named = document.trustRoot;
  if (named.name !== trust.root.name) throw new Error(`it was under the trust root ${named.name}`);
  if (named.version > trust.root.version) throw new Error("your trust root is an older version");
  if (named.version === trust.root.version && named.digest !== trust.digest) {
    throw new Error("another trust root of the same version was used");
  }
  step.did.push(`the trust root is the one it names, or a later one: version ${named.version}`);
  const { corpora, policy, quarantine, coverage, assuranceLevel } = document;
  step.did.push(
    `as signed, not checked: ${corpora.length} corpora, policy ${policy.name} version ` +
      `${policy.version}, ${coverage.length} totals of coverage, ${quarantine.length} reasons of ` +
      `quarantine, assurance ${assuranceLevel}`,
  );
  // Delegations belong to the trust root's step, which could not know yet that there are some.
  const delegations = document.files[FILES.delegations] ?? EMPTY;
  if (delegations !== EMPTY && !input.files.has(FILES.delegations)) {
    run.steps[0].needs.push(FILES.delegations);
  }
}

function files(run, step) {
  const { document, attested, input, names } = run;
  const gone = new Set(document.removals.map((removal) => removal.adapter));
  const expected = new Set(["config.json", "model.safetensors"]);
  if (attested.subjects.has(EMA)) expected.add(EMA);
  for (const { name } of document.adapters.filter((adapter) => !gone.has(adapter.name))) {
    expected.add(`adapters/${name}/adapter_config.json`);
    expected.add(`adapters/${name}/adapter_model.safetensors`);
  }
  for (const name of attested.subjects.keys()) {
    if (names.same(name.split("/")[0], G)) throw new Error(`${name} is named as a model file`);
    if (names.covered(name) && !expected.has(name)) throw new Error(`the model has no file ${name}`);
  }
  for (const name of expected) {
    if (!attested.subjects.has(name)) throw new Error(`the attestation does not cover ${name}`);
  }
  const required = [FILES.policy, FILES.manifest, FILES.credentials, FILES.ledger, FILES.checkpoint];
  const known = new Set([...required, FILES.delegations, FILES.gates, FILES.replays]);
  const pins = Object.keys(document.files);
  if (required.some((name) => !pins.includes(name)) || pins.some((name) => !known.has(name))) {
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
    } else if (name === FILES.manifest && digest === document.manifest) {
      step.not.push("the manifest, which is pinned by its statement: for step 7");
    } else if (file.digest !== digest) {
      throw new Error(`${name} is not the file that was attested`);
    } else same += 1;
  }
  if (same) step.did.push(`${same} of ${digests.size} files have the attested SHA-256`);
  const others = (input.names ?? []).filter(
    (name) => !digests.has(name) && name !== FILES.attestation && !names.byOutsiders(name),
  );
  for (const name of others) {
    const stands = names.reserved(name) || [...digests.keys()].some((each) => names.same(name, each));
    if (stands || !names.inert(name)) throw new Error(`${name} is not covered by the attestation`);
  }
  if (input.names) {
    step.did.push("a loader would load or execute no other file");
    if (others.length) step.did.push(`the attestation says nothing of: ${others.join(", ")}`);
  } else {
    step.not.push("whether further files lie in the folder: give the whole folder");
  }
}

async function policy(run, step) {
  const bytes = await pinned(run, FILES.policy);
  const { trust, document, kinds } = run;
  const times = [document.run.started, document.run.finished];
  const read = await trust.verify(bytes, kinds.policy, "policy", times, "policy");
  run.policy = read;
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
  const { trust, document, kinds } = run;
  const gated = hasGates(run);
  const times = gated ? [document.run.started] : [document.run.started, document.run.finished];
  run.credentials = new Map();
  for (const line of lines(bytes, FILES.credentials)) {
    const read = await trust.verify(line, kinds.credential, "credential", times, "credential");
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

const hasGates = ({ document }) => document.files[FILES.gates] !== undefined;

async function routes(run, step) {
  const { document, attested, input } = run;
  const base = [...document.groups.flatMap((group) => group.parameters), ...document.buffers];
  const expected = new Map([
    ["model.safetensors", base],
    [EMA, base],
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

// The tensors that a safetensors file names, sorted. Each of its bytes is one tensor's.
async function tensorNames(file, name) {
  const head = await file.bytes(0, 8);
  if (head.length < 8) throw new Error(`${name}: no safetensors file`);
  const size = Number(new DataView(head.buffer, head.byteOffset).getBigUint64(0, true));
  if (!(size > 0 && size <= 64 << 20)) throw new Error(`${name}: a header of ${size} bytes`);
  const header = JSON.parse(text(await file.bytes(8, 8 + size)));
  const names = Object.keys(header).filter((each) => each !== "__metadata__");
  const places = names.map((each) => header[each].data_offsets).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let end = 0;
  for (const [start, stop] of places) {
    if (start !== end) throw new Error(`${name}: bytes of two tensors, or of none`);
    end = stop;
  }
  if (8 + size + end !== file.size) throw new Error(`${name}: bytes that are no tensor's`);
  return names.sort();
}

function revocations(run, step) {
  const { trust, document, attested, input } = run;
  step.needs.push(...stale(trust, run.lists, input.at));
  if (!run.lists.length) throw new Missing("revocation lists, from their issuers");
  const { started, finished } = document.run;
  const refuse = (what, found, until) => {
    if (!found) return;
    if (found.since <= until) throw new Error(`${what} is revoked since ${found.since}`);
    step.did.push(`${what} is revoked from ${found.since} on`);
  };
  refuse("the attestation", ofAttestation(trust, run.lists, attested), input.at);
  if (!run.policy) throw new Missing(FILES.policy);
  refuse("the policy", ofPolicy(run.lists, run.policy), finished);
  if (!run.credentials) throw new Missing(FILES.credentials);
  const used = new Set(document.coverage.map((each) => each.corpus));
  const until = hasGates(run) ? started : finished; // a gate may have left the corpus out since
  for (const [corpus, credential] of run.credentials) {
    const found = ofCredential(trust, run.lists, credential);
    if (used.has(corpus)) refuse(`the credential of ${corpus}`, found, until);
  }
  step.not.push("which corpora the run used, and until when: that is as it was signed");
  if (!step.needs.length) {
    step.did.push(`${run.lists.length} lists, their issuers' and as new as the trust root asks`);
  }
}

function execution(run, step) {
  const { document, input } = run;
  const { execution: stated, environment, policy: under } = document;
  const { started, finished } = document.run;
  const { registered, attested, code, isolation } = stated;
  const times = [registered, started, finished, attested, input.at];
  if (times.some((at, i) => i > 0 && at < times[i - 1])) throw new Error("times out of order");
  if (stated.policy && stated.policy !== under.digest) {
    throw new Error("it was submitted under another policy");
  }
  if (encode(code.setup ?? {}) !== encode(environment.setup ?? {})) {
    throw new Error("the job reported another image or other packages");
  }
  const who = stated.user ? `submitted by ${stated.user}, project ${stated.project}; ` : "";
  step.did.push(`as the operator states: ${who}code ${code.origin}, isolation ${isolation}`);
  step.did.push(`registered at ${registered}, before it started; attested at ${attested}`);
}

// What a browser does of each step, by its number. The lists come early: whom they revoke signed
// nothing.
const ORDER = [
  [1, trustRoot],
  [13, lists],
  [2, signature],
  [3, statement],
  [4, files],
  [5, policy],
  [6, credentials],
  [8, routes],
  [13, revocations],
  [17, execution],
];
