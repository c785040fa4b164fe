"""The keys of the worlds in this folder: anyone can make them, so they are worth nothing.

A run that goes on needs its operator's key. It follows from a name, so that no key lies here.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def pem(name: str) -> bytes:
    """The Ed25519 key of an authority, as an unencrypted PKCS #8 file."""
    seed = hashlib.sha256(f"govray, tests of compatibility: {name}".encode()).digest()
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def store_secret() -> bytes:
    """The secret of the store."""
    return hashlib.sha256(b"govray, tests of compatibility: store").digest()
