"""Proofs over a list of leaves: what tiles and other implementations have to give."""

from __future__ import annotations

from collections.abc import Sequence

from govray.governance.formats.merkle import consistency_path, inclusion_path, leaf_hash, root_of


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """PATH(index, leaves), from the leaf upwards (RFC 9162 section 2.1.3.1)."""
    hashes = [leaf_hash(leaf) for leaf in leaves]
    return inclusion_path(index, len(hashes), lambda start, stop: root_of(hashes[start:stop]))


def consistency_proof(leaves: Sequence[bytes], first: int) -> tuple[bytes, ...]:
    """PROOF(first, leaves): the first leaves are a prefix (RFC 9162 section 2.1.4.1)."""
    hashes = [leaf_hash(leaf) for leaf in leaves]
    return consistency_path(first, len(hashes), lambda start, stop: root_of(hashes[start:stop]))
