"""Files that are checked block by block as they are read, so that opening one reads little of it.

A file is a sequence of blocks of one size; the last may be shorter. Who wrote it keeps the SHA-256
of each. A reader copies a block out of the mapping and compares the copy's digest. So what was
hashed is what is used, and a block that nobody asks for costs nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from govray.errors import Damaged

DIGEST = 32

Digests = npt.NDArray[np.uint8]
"""SHA-256 of blocks, ``[blocks, DIGEST]``."""


def block_count(size: int, block: int) -> int:
    """How many blocks of at most ``block`` bytes ``size`` bytes have."""
    return -(-size // block)


class BlockWriter:
    """Writes one sequence of blocks behind what a file has; ``digests`` and ``heads`` are theirs.
    Heads are the first eight bytes of each block. It holds less than a block in memory."""

    def __init__(self, file: BinaryIO, block: int) -> None:
        self._file, self._block = file, block
        self._rest = b""
        self.digests = bytearray()
        self.heads = bytearray()

    def add(self, data: bytes) -> None:
        """Append bytes, however many. Raises ``OSError``."""
        data = self._rest + data
        whole = len(data) - len(data) % self._block
        for start in range(0, whole, self._block):
            self._write(data[start : start + self._block])
        self._rest = data[whole:]

    def end(self) -> None:
        """Append the last block, if it is short."""
        if self._rest:
            self._write(self._rest)
        self._rest = b""

    def _write(self, block: bytes) -> None:
        self._file.write(block)
        self.digests += hashlib.sha256(block).digest()
        self.heads += block[:8]


def checked(
    block: npt.NDArray[np.void] | npt.NDArray[np.uint64], digest: Digests, path: Path
) -> bytes:
    """The bytes of a block of a mapped file, copied.
    Raises ``Damaged``: they have another digest."""
    data = block.tobytes()
    if hashlib.sha256(data).digest() != digest.tobytes():
        raise damaged(path)
    return data


def damaged(path: Path) -> Damaged:
    """The error of an index that is not as it was written."""
    return Damaged(
        "the index of passages is not as it was written",
        where=str(path),
        do="Delete it: the next search builds it anew.",
    )
