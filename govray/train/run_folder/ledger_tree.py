"""The bytes and the tree head of a ledger that grows, without starting over at each commit.

Equal to ``Ledger(run, leaves).data`` and ``.root``, but every leaf is encoded and hashed only once.
A run of many steps would otherwise hold the interpreter lock longer at every commit.

Every `TILE` lines make a tile, which never changes: commits share it. The lines behind the last
whole tile are the tail.

Source: https://c2sp.org/tlog-tiles, whose entry bundles hold as many entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from govray.governance.formats import canonical_json, merkle
from govray.governance.record.ledger import AnyLeaf
from govray.train.checkpoint.commit_reader import FileEntry

TILE = 256
"""Lines of a whole tile."""


@dataclass(frozen=True)
class LedgerTile:
    """`TILE` lines of a ledger, each with its newline."""

    entry: FileEntry
    data: bytes


class LedgerFile:
    """Takes the leaves of one run, and processes only new ones."""

    def __init__(self) -> None:
        self._tiles: list[LedgerTile] = []
        self._tail = bytearray()
        self._size = 0
        self._peaks: list[tuple[int, bytes]] = []  # of perfect subtrees, the largest first

    def extend(self, leaves: Sequence[AnyLeaf]) -> None:
        """Take what ``leaves`` has beyond those taken before, which it begins with."""
        for leaf in leaves[self._size :]:
            line = leaf.line
            self._tail += line + b"\n"
            self._size += 1
            if self._size % TILE == 0:
                data = bytes(self._tail)
                self._tiles.append(
                    LedgerTile(FileEntry(canonical_json.sha256(data), len(data)), data)
                )
                self._tail.clear()
            size, node = 1, merkle.leaf_hash(line)
            while self._peaks and self._peaks[-1][0] == size:
                node = merkle.node_hash(self._peaks.pop()[1], node)
                size *= 2
            self._peaks.append((size, node))

    @property
    def data(self) -> bytes:
        return b"".join(tile.data for tile in self._tiles) + self.tail

    @property
    def tiles(self) -> tuple[LedgerTile, ...]:
        return tuple(self._tiles)

    @property
    def tail(self) -> bytes:
        """The lines behind the last whole tile."""
        return bytes(self._tail)

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
