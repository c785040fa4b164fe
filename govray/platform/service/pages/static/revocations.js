// Revocation lists, by the rules of `revocation_list.py`: an authority takes back only what it could
// issue, and what a revoked authority signs no longer counts.

import { checkSelf } from "./dsse.js";
import { covers, names } from "./trust.js";

const ROLES = {
  credential: "credential",
  corpus: "credential",
  policy: "policy",
  attestation: "operator",
};
const earliest = (found) => found.reduce((a, b) => (b && (!a || b.since < a.since) ? b : a), null);

// Each list in `envelopes`, with the authority that issued it. Marks in `trust` whom they revoke.
export async function readLists(trust, envelopes, at) {
  const lists = [];
  for (const bytes of envelopes) {
    const read = await trust.verify(bytes, trust.kinds.revocations, null, [at], "revocations");
    const { document } = read;
    const where = `list ${document.sequence} of ${document.issuer}`;
    checkSelf(read, document.issuer, where);
    const issuer = read.authorities
      .map(({ authority }) => authority)
      .find(({ name }) => name === document.issuer);
    if (!issuer) throw new Error(`${where}: its issuer did not sign it`);
    if (lists.some((each) => each.issuer.name === issuer.name)) {
      throw new Error(`two revocation lists of ${issuer.name}: give the newer one alone`);
    }
    for (const entry of document.entries) check(entry, issuer, where);
    if (document.issued > at) throw new Error(`${where}: issued after now`);
    lists.push({ ...document, issuer, where });
  }
  for (const { digest, delegator, name } of trust.delegations) {
    const found = entries(lists, (entry) => entry.delegation === digest);
    const above = trust.lineage(name);
    const stranger = found.find(({ list }) => !above.includes(list.issuer.name));
    if (stranger) throw new Error(`${stranger.list.where}: revokes a delegation of others`);
    const first = earliest([trust.revoked.get(delegator), ...found]);
    if (first) trust.revoked.set(name, first);
  }
  return lists;
}

function check(entry, issuer, where) {
  const things = [...Object.keys(ROLES), "delegation"].filter((each) => each in entry);
  if (things.length !== 1) throw new Error(`${where}: an entry names one thing`);
  const role = ROLES[things[0]];
  if ((role && role !== issuer.role) || (entry.corpus && !names(issuer, entry.corpus))) {
    throw new Error(`${where}: an authority revokes only what it could issue`);
  }
}

const entries = (lists, chosen) =>
  lists.flatMap((list) =>
    list.entries.filter(chosen).map((entry) => ({ ...entry, list, since: entry.since })),
  );

// What the trust root asks of lists and these do not have, in words.
export function stale(trust, lists, at) {
  const found = [];
  for (const authority of trust.authorities.values()) {
    const { name, minimumRevocations: least, maximumRevocationAgeHours: hours } = authority;
    if ((!least && !hours) || trust.revoked.get(name)?.since <= at) continue;
    const list = lists.find((each) => each.issuer.name === name);
    const age = list && (Date.parse(at) - Date.parse(list.issued)) / 3_600_000;
    if (!list || (least && list.sequence < least) || (hours && age >= hours)) {
      found.push(`a newer revocation list of ${name}, which the trust root asks for`);
    }
  }
  return found;
}

// The earliest revocation of the attestation, or null.
export function ofAttestation(trust, lists, { digest, authorities }) {
  const found = entries(lists, (entry) => entry.attestation === digest);
  const signers = authorities.map(({ authority }) => authority.name);
  for (const { list } of found) {
    const { name } = list.issuer;
    const above = signers.some((each) => each === name || trust.lineage(each).includes(name));
    if (trust.lineage(name).length && !above) {
      throw new Error(`${list.where}: revokes an attestation of others`);
    }
  }
  return earliest(found);
}

export const ofPolicy = (lists, { digest }) =>
  earliest(entries(lists, (entry) => entry.policy === digest));

// The earliest revocation of a credential, by a list whose issuer could have issued it.
export function ofCredential(trust, lists, { digest, document }) {
  const found = entries(
    lists,
    (entry) => entry.credential === digest || entry.corpus === document.corpus,
  );
  const stranger = found.find(({ list }) => !covers(list.issuer, document));
  if (stranger) throw new Error(`${stranger.list.where}: revokes a credential outside its scope`);
  return earliest([...found, trust.revoked.get(document.issuer)]);
}
