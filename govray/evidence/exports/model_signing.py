"""OpenSSF model signing (OMS) 1.0: ``model.sig``, which ``model_signing verify key`` checks.

One in-toto Statement about the whole folder, in a DSSE envelope, in a Sigstore bundle 0.3. The
subject's digest is the SHA-256 of the files' digests behind each other, in the order of their
paths. The statement and the bundle are RFC 8785.

Every file that verified is in it, and no other. So the tool refuses a file that the attestation
does not cover, unless it is told to ignore unsigned files. Nothing is ignored by the signature.

Source: https://github.com/ossf/model-signing-spec, and model-signing 1.1.1.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from govray.errors import UsageError
from govray.evidence.exports.sigstore_bundle import bundle
from govray.evidence.exports.verified_facts import VerifiedFacts
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import IN_TOTO, pae
from govray.governance.formats.keys import Signer, sign_with

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
