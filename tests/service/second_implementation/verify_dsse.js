// Check the signature of a DSSE envelope with @sigstore/verify.
//
//   node verify_dsse.js ENVELOPE PUBLIC-KEY.pem
//
// The envelope's bytes go into a Sigstore bundle as they are. There is no transparency log and no
// certificate: the key comes from the caller. Prints the SHA-256 of the payload and its subjects;
// exit code 1 where the signature does not verify.

import { createHash, createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { bundleFromJSON } from "@sigstore/bundle";
import { toSignedEntity, VerificationError, Verifier } from "@sigstore/verify";

const [envelopeFile, keyFile] = process.argv.slice(2);
const envelope = JSON.parse(readFileSync(envelopeFile, "utf8"));
const publicKey = createPublicKey(readFileSync(keyFile));

const bundle = bundleFromJSON({
  mediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
  verificationMaterial: { publicKey: { hint: "operator" }, tlogEntries: [] },
  dsseEnvelope: envelope,
});

const trust = {
  certificateAuthorities: [],
  timestampAuthorities: [],
  tlogs: [],
  ctlogs: [],
  publicKey: () => ({ publicKey, validFor: () => true }),
};
const verifier = new Verifier(trust, { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 });

try {
  verifier.verify(toSignedEntity(bundle));
} catch (error) {
  if (!(error instanceof VerificationError)) throw error;
  console.error(error.message);
  process.exit(1);
}

const payload = bundle.content.dsseEnvelope.payload;
const statement = JSON.parse(payload.toString("utf8"));
console.log(
  JSON.stringify({
    payload: createHash("sha256").update(payload).digest("hex"),
    subjects: Object.fromEntries(statement.subject.map((each) => [each.name, each.digest.sha256])),
  }),
);
