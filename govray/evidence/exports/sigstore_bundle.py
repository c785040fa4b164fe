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

import hashlib
from pathlib import PurePosixPath

from govray.errors import UsageError
from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import IN_TOTO, Envelope, encode_base64, pae
from govray.governance.formats.keys import Signer, sign_with

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


# OpenSSF model signing (OMS) 1.0: ``model.sig``, which ``model_signing verify key`` checks.
#
# One in-toto Statement about the whole folder, in a DSSE envelope, in a Sigstore bundle 0.3. The
# subject's digest is the SHA-256 of the files' digests behind each other, in the order of their
# paths. The statement and the bundle are RFC 8785.
#
# Every file that verified is in it, and no other. So the tool refuses a file that the attestation
# does not cover, unless it is told to ignore unsigned files. Nothing is ignored by the signature.
#
# Source: https://github.com/ossf/model-signing-spec, and model-signing 1.1.1.


PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def statement(facts: VerifiedFacts) -> bytes:
    files = sorted(facts.files, key=lambda each: PurePosixPath(each.name))
    total = hashlib.sha256(b"".join(bytes.fromhex(each.sha256) for each in files))
    return canonical_json.encode(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": facts.name, "digest": {"sha256": total.hexdigest()}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": [],
                },
                "resources": [
                    {"name": each.name, "algorithm": "sha256", "digest": each.sha256}
                    for each in files
                ],
            },
        }
    )


def model_signing(facts: VerifiedFacts, signer: Signer) -> bytes:
    """The signed bundle. ``signer``: with a P-256 key: the format knows no Ed25519."""
    key = signer.public_key
    if key.algorithm != "ecdsa-p256":
        raise UsageError(
            f"model signing knows no {key.algorithm} keys",
            where=f"key {key.keyid[:16]}",
            do="Give a P-256 key: govray keys new PATH --algorithm ecdsa-p256",
        )
    payload = statement(facts)
    return bundle(
        IN_TOTO,
        payload,
        sign_with(signer, pae(IN_TOTO, payload)),
        hint=hashlib.sha256(key.to_pem()).hexdigest(),
        keyid="",
    )
