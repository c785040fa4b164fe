"""Sigstore bundles 0.3: a DSSE envelope with one signature, and the name of the key that made it.

`sigstore` puts a verified attestation into bundles, for whoever runs a Rekor log or Sigstore's
verifiers. Nothing is signed: payload and signatures are those of the model folder. A bundle holds
one signature, so an attestation of several keys becomes several bundles.

A bundle names its key twice, and the format wants the same name in both places. That is OpenSSH's
fingerprint: the DSSE library of Sigstore's Go tools passes over a signature under another name.

What is left out: entries of a log, since none was asked, and timestamps. A bundle's timestamp is
over the signature. Those of a model folder are over the envelope (``governance/notary``).

Source: sigstore_bundle.proto of https://github.com/sigstore/protobuf-specs, and dsse/verify.go of
https://github.com/secure-systems-lab/go-securesystemslib.
"""

from __future__ import annotations

from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope, encode_base64

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def bundle(payload_type: str, payload: bytes, signature: bytes, *, hint: str, keyid: str) -> bytes:
    """A bundle without an entry of a log, in RFC 8785.

    Args:
        payload_type: DSSE's, of what was signed.
        payload: What was signed, without DSSE's encoding before it.
        signature: Over that encoding of both.
        hint: Names the key in the verification material; it decides nothing.
    """
    return canonical_json.encode(
        {
            "mediaType": MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": encode_base64(payload),
                "payloadType": payload_type,
                "signatures": [{"sig": encode_base64(signature), "keyid": keyid}],
            },
        }
    )


def sigstore(facts: VerifiedFacts) -> dict[str, bytes]:
    """The attestation as bundles: keyid, computed from the key, → the bundle of its signature.
    ``facts``: of a model that verified, so each signature is one of its keys'."""
    signed, keys = facts.envelope, {key.keyid: key for key in facts.keys}
    bundles = {}
    for each in signed.signatures:
        alone = Envelope(signed.payload_type, signed.payload, (each,))
        [keyid] = alone.signed_by(keys.values())
        name = keys[keyid].openssh_fingerprint
        bundles[keyid] = bundle(
            signed.payload_type, signed.payload, each.sig, hint=name, keyid=name
        )
    return bundles
