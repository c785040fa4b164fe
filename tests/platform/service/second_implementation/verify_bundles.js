// Check Sigstore bundles with @sigstore/verify.
//
//   node verify_bundles.js CASES.json
//
// CASES is a list of {bundle, key}: a bundle, and the public key as PEM, which comes from the caller
// and not from the bundle. There is no transparency log and no certificate. Prints a list: for each
// case the SHA-256 of the payload and its subjects, or why the bundle is refused.

import { createHash, createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { bundleFromJSON, ValidationError } from "@sigstore/bundle";
import { toSignedEntity, VerificationError, Verifier } from "@sigstore/verify";

const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));

function checked({ bundle, key }) {
  const publicKey = createPublicKey(key);
  const trust = {
    certificateAuthorities: [],
    timestampAuthorities: [],
    tlogs: [],
    ctlogs: [],
    publicKey: () => ({ publicKey, validFor: () => true }),
  };
  const none = { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 };
  try {
    const read = bundleFromJSON(bundle);
    new Verifier(trust, none).verify(toSignedEntity(read));
    const payload = read.content.dsseEnvelope.payload;
    const subjects = JSON.parse(payload.toString("utf8")).subject;
    return {
      payload: createHash("sha256").update(payload).digest("hex"),
      subjects: Object.fromEntries(subjects.map((each) => [each.name, each.digest.sha256])),
    };
  } catch (error) {
    if (error instanceof VerificationError || error instanceof ValidationError) {
      return { refused: error.message };
    }
    throw error;
  }
}

console.log(JSON.stringify(cases.map(checked)));
