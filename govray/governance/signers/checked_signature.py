"""A signature from outside this process, checked at once.

A module or a service may hold another key than the one that was meant. What it signs would then be
found out by readers, when it is too late.
"""

from __future__ import annotations

from govray.errors import Untrusted, UsageError
from govray.governance.formats.keys import PublicKey


def checked(key: PublicKey, message: bytes, signature: bytes, *, where: str) -> bytes:
    """Return ``signature`` if it is the key's over ``message``.
    ``signature``: what came back: 64 bytes (Ed25519) or DER (ECDSA with SHA-256)."""
    try:
        key.verify(message, signature)
    except Untrusted:
        raise UsageError(
            f"the signature of {len(signature)} bytes is not by the public key {key.keyid[:16]}",
            where=where,
            do="Check that key and public key belong together, and that the signer hashes "
            "nothing twice: Ed25519 signs the bytes themselves, P-256 their SHA-256, in DER",
        ) from None
    return signature
