// Trust: a root that the reader gives, its authorities, and those that they delegate to.
//
// The rules of `govray/governance/trust/trust_state.py`: distinct keys count, everything is used at a
// reference time and refused from its expiry on, and a delegation only narrows.

import { checkSelf, parseEnvelope, readStatement, signedBy } from "./dsse.js";
import { loadKey } from "./keys.js";

const SENSITIVITIES = ["public", "internal", "confidential", "restricted"];

export class Trust {
  // Times are texts of one width, `YYYY-MM-DDTHH:MM:SSZ`, so their order is that of time.
  static async load(rootBytes, kinds, at, delegations = []) {
    const where = "trust root";
    const envelope = parseEnvelope(rootBytes, where);
    const read = readStatement(envelope, kinds.trustRoot, where);
    const root = read.document;
    checkSelf(read, root.name, where);
    checkKeys(root, where);
    const signed = await signedBy(envelope, await Promise.all(root.keys.map(loadKey)));
    if (signed.size < root.threshold) {
      throw new Error(`the root is signed by ${signed.size} of ${root.threshold} of its own keys`);
    }
    if (at >= root.expires) throw new Error(`the trust root expired at ${root.expires}`);
    const trust = new Trust();
    trust.root = root;
    trust.digest = read.digest;
    trust.kinds = kinds;
    trust.authorities = new Map();
    trust.delegations = []; // delegators before delegates
    trust.revoked = new Map(); // name → what takes its delegation back
    for (const authority of root.authorities) await trust.add(authority, where);
    await trust.delegate(delegations);
    return trust;
  }

  async add(authority, where) {
    checkKeys(authority, where);
    if ((authority.role === "credential") !== Boolean(authority.scope?.length)) {
      throw new Error(`${where}: scopes belong to authorities for credentials`);
    }
    if (this.authorities.has(authority.name)) {
      throw new Error(`${where}: the name '${authority.name}' is already taken`);
    }
    const loaded = await Promise.all(authority.keys.map(loadKey));
    this.authorities.set(authority.name, { ...authority, loaded });
  }

  async delegate(delegations) {
    if (delegations.length > 256) throw new Error("more than 256 delegations");
    let pending = delegations.map((bytes, i) => {
      const where = `delegation ${i + 1}`;
      const envelope = parseEnvelope(bytes, where);
      const read = readStatement(envelope, this.kinds.delegation, where);
      checkSelf(read, read.document.authority.name, where);
      return { where, envelope, digest: read.digest, ...read.document };
    });
    while (pending.length) {
      const ready = pending.filter((each) => this.authorities.has(each.delegator));
      if (!ready.length) throw new Error(`${pending[0].where}: its delegator is not known`);
      pending = pending.filter((each) => !ready.includes(each));
      for (const { where, envelope, digest, delegator, authority } of ready) {
        const parent = this.authorities.get(delegator);
        const signed = await signedBy(envelope, parent.loaded);
        if (signed.size < parent.threshold) {
          throw new Error(`${where}: signed by ${signed.size} of ${parent.threshold} keys`);
        }
        checkNarrows(authority, parent, where);
        await this.add(authority, where);
        this.delegations.push({ digest, delegator, name: authority.name });
      }
    }
  }

  // Who an authority has its rights from, the nearest first; nobody for one of the root's own.
  lineage(name) {
    const found = [];
    for (let at = name; at !== undefined; ) {
      at = this.delegations.find((each) => each.name === at)?.delegator;
      if (at !== undefined) found.push(at);
    }
    return found;
  }

  // The envelope in `bytes` and the authorities of the role (null: any) that signed it, each with
  // its keys' ids and valid at every one of the times. The payload stays closed.
  async signers(bytes, role, times, where) {
    const envelope = parseEnvelope(bytes, where);
    const authorities = [];
    for (const authority of this.authorities.values()) {
      if (role && authority.role !== role) continue;
      const keyids = await signedBy(envelope, authority.loaded);
      const until = authority.expires < this.root.expires ? authority.expires : this.root.expires;
      const gone = this.revoked.get(authority.name);
      const holds = (at) => at < until && !(gone && gone.since <= at);
      if (keyids.size >= authority.threshold && times.every(holds)) {
        authorities.push({ authority, keyids });
      }
    }
    if (!authorities.length) {
      throw new Error(`${where}: no ${role ?? ""} authority of the trust root signed it`);
    }
    return { envelope, authorities, ...authorities[0] };
  }

  // The same as `signers`, if nobody else signed: no digest binds other signatures and key hints.
  async soleSigner(bytes, role, times, where) {
    const signed = await this.signers(bytes, role, times, where);
    const hints = signed.envelope.signatures.map(({ keyid }) => keyid ?? "").sort();
    if (hints.join() !== [...signed.keyids].sort().join()) {
      throw new Error("the envelope holds signatures or key hints other than the signer's");
    }
    return signed;
  }

  // The statement in `bytes`, of one kind, signed as `signers` says.
  async verify(bytes, kind, role, times, where) {
    const signed = await this.signers(bytes, role, times, where);
    return { ...signed, ...readStatement(signed.envelope, kind, where) };
  }

  minimumPolicyVersion(name) {
    const stated = [...this.authorities.values()]
      .flatMap((authority) => Object.entries(authority.minimumPolicyVersions ?? {}))
      .filter(([policy]) => spelling(policy) === spelling(name))
      .map(([, least]) => least);
    return Math.max(1, ...stated);
  }
}

// What all spellings of a policy's name share: `Licences` has the minimum of `licences`.
const spelling = (name) => name.toLowerCase().replace(/[._-]+/g, "-").replace(/-$/, "");

export function covers(authority, stated) {
  return (authority.scope ?? []).some(
    (scope) =>
      within(stated.corpus, scope.corpus) &&
      scope.licenseCategories.includes(stated.licenseCategory) &&
      (scope.jurisdictions.includes("*") || scope.jurisdictions.includes(stated.jurisdiction)) &&
      rank(stated.sensitivity) <= rank(scope.maxSensitivity),
  );
}

// One of an authority's scopes is about this corpus, whatever else it restricts.
export const names = (authority, corpus) =>
  (authority.scope ?? []).some((scope) => within(corpus, scope.corpus));

const rank = (sensitivity) => SENSITIVITIES.indexOf(sensitivity);

// Whether every name that the first pattern covers is covered by the second.
function within(pattern, other) {
  return other.endsWith("*") ? pattern.startsWith(other.slice(0, -1)) : pattern === other;
}

function checkKeys({ keys, threshold }, where) {
  if (new Set(keys.map((key) => key.spki)).size < keys.length) {
    throw new Error(`${where}: a key is named twice`);
  }
  if (threshold > keys.length) throw new Error(`${where}: a threshold that its keys cannot meet`);
}

function checkNarrows(child, parent, where) {
  const narrows =
    child.role === parent.role &&
    child.expires <= parent.expires &&
    (child.scope ?? []).every((scope) =>
      (parent.scope ?? []).some(
        (wider) =>
          within(scope.corpus, wider.corpus) &&
          scope.licenseCategories.every((each) => wider.licenseCategories.includes(each)) &&
          (wider.jurisdictions.includes("*") ||
            scope.jurisdictions.every((each) => wider.jurisdictions.includes(each))) &&
          rank(scope.maxSensitivity) <= rank(wider.maxSensitivity),
      ),
    );
  if (!narrows) throw new Error(`${where}: it has a right that its delegator lacks`);
}
