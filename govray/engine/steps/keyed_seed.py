"""Seeds of random numbers, from what they are drawn for: no generator is shared.

They are 64 bits of SHA-256. Two of very many may coincide. That is harmless for training, and no
secret hangs on it.
"""

from __future__ import annotations

import hashlib


def mask_seed(*key: int | str) -> int:
    """Of a dropout mask: from the key's parts, NUL-separated."""
    return _seed("govray dropout", *key)


def adapter_seed(seed: int, name: str, fqn: str) -> int:
    """Of the first weights that an adapter has at a layer."""
    return _seed("govray adapter", seed, name, fqn)


def _seed(*key: int | str) -> int:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
