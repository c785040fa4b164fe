"""Merkle trees over SHA-256: roots, inclusion proofs and consistency proofs.

Source: RFC 9162 section 2.1 (the tree of RFC 6962), whose names are kept: the
Merkle Tree Hash ``MTH``, ``PATH`` and ``PROOF``. Leaves are hashed with a 0x00
prefix and nodes with 0x01, so a node never passes for a leaf.

Functions that compute take the leaves (before `leaf_hash`), or a function that gives a subtree's
root. Functions that verify take only hashes, sizes and the proof. A tree is never stored.

Invariant: a proof is accepted only with exactly the hashes that its index and
sizes call for, so it has one length and no slack.

Not here: signing a root, which is `signed_note.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from struct import iter_unpack
from typing import TypeAlias

from govray.errors import Malformed, Refused

HASH_SIZE = 32

_BLOCK = HASH_SIZE << 14
"""Bytes of the hashes of one block of leaves; their number is a power of two."""

EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the tree without leaves."""


Subtree: TypeAlias = Callable[[int, int], bytes]
"""``subtree(start, stop)`` is MTH(D[start:stop]) of some tree."""


def leaf_hash(leaf: bytes) -> bytes:
    """Return SHA-256(0x00 || leaf)."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the Merkle Tree Hash of ``leaves`` (RFC 9162 section 2.1.1), 32 bytes."""
    return root_of([leaf_hash(leaf) for leaf in leaves])


class RunningRoot:
    """The root of leaves that come one by one; holds one hash for each bit of their count."""

    def __init__(self) -> None:
        self.count = 0
        self._whole: list[bytes] = []  # roots of perfect subtrees, the largest first

    def add(self, leaf: bytes) -> None:
        """Append a leaf."""
        self.add_hash(leaf_hash(leaf))

    def add_hash(self, node: bytes) -> None:
        """Append a leaf by its hash."""
        count = self.count
        while count & 1:
            node = node_hash(self._whole.pop(), node)
            count >>= 1
        self._whole.append(node)
        self.count += 1

    def root(self) -> bytes:
        """The Merkle Tree Hash of the leaves so far."""
        if not self._whole:
            return EMPTY_ROOT
        *before, node = self._whole
        for left in reversed(before):
            node = node_hash(left, node)
        return node

    def root_with(self, last: bytes) -> bytes:
        """The root if ``last``, the root of fewer leaves than any subtree so far, stood behind."""
        for left in reversed(self._whole):
            last = node_hash(left, last)
        return last


class BulkRoot:
    """The root of leaves that come in buffers of many; holds the hashes of one block of leaves."""

    def __init__(self) -> None:
        self._blocks = RunningRoot()
        self._rest = b""

    def add_hashes(self, hashes: bytes) -> None:
        """Append leaves by their hashes, 32 bytes each, behind each other."""
        data = self._rest + hashes
        whole = len(data) - len(data) % _BLOCK
        for start in range(0, whole, _BLOCK):
            self._blocks.add_hash(root_of_buffer(data[start : start + _BLOCK]))
        self._rest = data[whole:]

    def root(self) -> bytes:
        """The Merkle Tree Hash of the leaves so far."""
        if not self._rest:
            return self._blocks.root()
        # The blocks are whole subtrees, so what is left stands behind them as one more.
        return self._blocks.root_with(root_of_buffer(self._rest))


def root_of_buffer(hashes: bytes) -> bytes:
    """MTH over leaf hashes behind each other, as `root_of`."""
    if not hashes:
        return EMPTY_ROOT
    start = hashlib.sha256(b"\x01")
    while len(hashes) > HASH_SIZE:
        odd = len(hashes) % (2 * HASH_SIZE)
        found = []
        for (pair,) in iter_unpack("64s", hashes[: len(hashes) - odd]):
            copy = start.copy()  # what has begun need not begin again: two thirds of the time
            copy.update(pair)
            found.append(copy.digest())
        hashes = b"".join(found) + (hashes[-HASH_SIZE:] if odd else b"")
    return hashes


def inclusion_path(index: int, size: int, subtree: Subtree) -> tuple[bytes, ...]:
    """PATH(index) in a tree of ``size`` leaves, wherever its hashes are; ``index`` < ``size``."""
    path: list[bytes] = []
    start, stop = 0, size
    while stop - start > 1:
        split = start + _split(stop - start)
        if index < split:
            path.append(subtree(split, stop))
            stop = split
        else:
            path.append(subtree(start, split))
            start = split
    return tuple(reversed(path))


def consistency_path(first: int, size: int, subtree: Subtree) -> tuple[bytes, ...]:
    """PROOF(first) in a tree of ``size`` leaves, wherever its hashes are; 1 <= first <= size."""
    path: list[bytes] = []
    start, stop = 0, size
    while first != stop:
        split = start + _split(stop - start)
        if first <= split:
            path.append(subtree(split, stop))
            stop = split
        else:
            path.append(subtree(start, split))
            start = split
    if start > 0:  # the verifier does not know this subtree: it is not the whole first tree
        path.append(subtree(start, stop))
    return tuple(reversed(path))


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected: bytes
) -> None:
    """Return if the tree of ``size`` leaves with root ``expected`` has ``leaf`` at ``index``.

    Args:
        leaf: The leaf's hash, as `leaf_hash` gives it.
        index: Position of the leaf, from 0.
        proof: As `inclusion_path` gives it.
        expected: The root, from a source that the caller trusts.

    The algorithm is that of RFC 9162 section 2.1.3.2.

    Raises:
        Refused: The proof does not lead to the root.
    """
    if not 0 <= index < size:
        raise Malformed(f"a tree of {size} leaves has no leaf {index}", where="inclusion proof")
    _check_hashes("inclusion proof", leaf, expected, *proof)
    node, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise _mismatch("inclusion proof", "it has too many hashes")
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise _mismatch("inclusion proof", "it has too few hashes")
    if found != expected:
        raise _mismatch("inclusion proof", "it leads to another root")


def verify_consistency(
    first: int, first_root: bytes, second: int, second_root: bytes, proof: Sequence[bytes]
) -> None:
    """Return if the tree of ``second`` leaves begins with the tree of ``first`` leaves.

    Args:
        first: Size of the earlier tree, at least 1.
        proof: As `consistency_path` gives it; empty if the sizes are equal.

    The algorithm is that of RFC 9162 section 2.1.4.2.

    Raises:
        Refused: The proof does not connect the roots.
    """
    what = "consistency proof"
    if not 1 <= first <= second:
        raise Malformed(f"sizes {first} and {second} are not in order", where=what)
    _check_hashes(what, first_root, second_root, *proof)
    if first == second:
        if proof:
            raise _mismatch(what, "it has too many hashes")
        if first_root != second_root:
            raise _mismatch(what, "two trees of equal size have different roots")
        return
    # A first tree that is a whole subtree of the second starts the proof itself.
    path = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    if not path:
        raise _mismatch(what, "it has too few hashes")
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    first_found = second_found = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise _mismatch(what, "it has too many hashes")
        if node & 1 or node == last:
            first_found = node_hash(sibling, first_found)
            second_found = node_hash(sibling, second_found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            second_found = node_hash(second_found, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise _mismatch(what, "it has too few hashes")
    if first_found != first_root:
        raise _mismatch(what, "it leads to another root of the earlier tree")
    if second_found != second_root:
        raise _mismatch(what, "it leads to another root of the later tree")


def root_of(hashes: Sequence[bytes]) -> bytes:
    """MTH over leaf hashes, or over the roots of whole subtrees of one size, level by level.

    An odd node at the end of a level moves up unchanged. That is the RFC's split at the largest
    power of two, read from below.
    """
    if not hashes:
        return EMPTY_ROOT
    level = list(hashes)
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level = paired
    return level[0]


def _split(size: int) -> int:
    """The largest power of two smaller than ``size`` (at least 2)."""
    return 1 << (size - 1).bit_length() - 1


def _check_hashes(where: str, *hashes: bytes) -> None:
    if any(len(value) != HASH_SIZE for value in hashes):
        raise Malformed(f"a hash is not {HASH_SIZE} bytes", where=where)


def _mismatch(where: str, why: str) -> Refused:
    return Refused(f"the proof does not hold: {why}", where=where)
