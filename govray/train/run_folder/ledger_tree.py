"""The bytes and the tree head of a ledger that grows, without starting over at each commit.

Equal to ``Ledger(run, leaves).data`` and ``.root``, but every leaf is encoded and hashed only once.
A run of many steps would otherwise hold the interpreter lock longer at every commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from govray.governance.formats import merkle
from govray.governance.record.ledger import AnyLeaf


class LedgerFile:
    """Takes the leaves of one run, and processes only new ones."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._size = 0
        self._peaks: list[tuple[int, bytes]] = []  # of perfect subtrees, the largest first

    def extend(self, leaves: Sequence[AnyLeaf]) -> None:
        """Take what ``leaves`` has beyond those taken before, which it begins with."""
        for leaf in leaves[self._size :]:
            line = leaf.line
            self._data += line + b"\n"
            self._size += 1
            size, node = 1, merkle.leaf_hash(line)
            while self._peaks and self._peaks[-1][0] == size:
                node = merkle.node_hash(self._peaks.pop()[1], node)
                size *= 2
            self._peaks.append((size, node))

    @property
    def data(self) -> bytes:
        """The bytes of ``ledger.jsonl``."""
        return bytes(self._data)

    @property
    def size(self) -> int:
        """The number of leaves of both kinds."""
        return self._size

    @property
    def root(self) -> bytes:
        """The RFC 9162 Merkle root over the lines, 32 bytes."""
        if not self._peaks:
            return merkle.EMPTY_ROOT
        *larger, (_, node) = self._peaks
        for _, left in reversed(larger):
            node = merkle.node_hash(left, node)
        return node
