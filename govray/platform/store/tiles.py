"""A ledger as tiles on storage: C2SP ``tlog-tiles``, written append-only, read without trust.

Source: https://c2sp.org/tlog-tiles. Below one prefix lie

    checkpoint                      the signed note (`govray.governance.formats.signed_note`)
    tile/<L>/<N>[.p/<W>]            up to 256 hashes of level L, 32 bytes each
    tile/entries/<N>[.p/<W>]        the entries of the tile of level 0, each behind its length
    tile/entries32/<N>[.p/<W>]      the same with lengths of four bytes, see below

``<N>`` is written in path elements of three digits, all but the last behind an ``x``. A tile of
level L + 1 holds the Merkle roots of whole tiles of level L. So a proof in a tree of n entries
takes O(log n) reads.

Entries that are too long. The standard gives an entry two bytes of length, and a ledger's leaf that
names a thousand corpora is longer. A bundle with an entry of more than 65,535 bytes is stored below
``tile/entries32`` instead, with big-endian lengths of four bytes. It does not exist below
``tile/entries``: the standard wants other formats at another address. Hashes, and so tiles, proofs
and the checkpoint, are the same. A reader that finds no bundle at the first address asks at the
second.

Invariants

* A tile or bundle, once written, never changes: what is there already is compared, and other
  bytes are refused. What a power cut left of one is written again: a beginning of the right bytes,
  or zeros in their place. Partial ones have their width in their name and stay when a wider one
  comes.
* What is written appears whole, the checkpoint last: who sees a checkpoint finds its tiles.
* A `TileReader` answers nothing that it did not check against the signed root that it was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from govray.errors import CouldNotCheck, Damaged, Malformed, Refused
from govray.governance.formats import merkle
from govray.governance.formats.merkle import HASH_SIZE
from govray.platform.store.tile_storage import TileFolder

WIDTH: Final = 256
"""Hashes of a full tile, entries of a full bundle."""

HEIGHT: Final = 8
"""Levels of the Merkle tree that one tile spans."""

MAX_LEVEL: Final = 63
MAX_ENTRY: Final = (1 << 16) - 1
"""The longest entry that fits into a bundle of the standard, in bytes."""

MAX_LONG_ENTRY: Final = 1 << 24
"""The longest line of a ledger."""

CHECKPOINT: Final = "checkpoint"
ENTRIES: Final = "entries"
LONG_ENTRIES: Final = "entries32"

_PATH = re.compile(
    r"tile/(?P<level>0|[1-9][0-9]?|entries|entries32)/(?P<n>(x[0-9]{3}/){0,6}[0-9]{3})"
    r"(\.p/(?P<width>[1-9][0-9]{0,2}))?"
)


@dataclass(frozen=True)
class TileName:
    """A tile, or a bundle of entries. ``level``: 0 to 63, or ``entries`` or ``entries32``.
    ``width``: how many hashes or entries it has, 1 to 256."""

    level: int | str
    index: int
    width: int = WIDTH

    @property
    def path(self) -> str:
        """Below the log's prefix."""
        partial = "" if self.width == WIDTH else f".p/{self.width}"
        return f"tile/{self.level}/{encode_index(self.index)}{partial}"

    @property
    def is_bundle(self) -> bool:
        """Whether it holds entries, and no hashes."""
        return isinstance(self.level, str)


def encode_index(index: int) -> str:
    """``1234067`` → ``x001/x234/067``."""
    parts = [f"{index % 1000:03}"]
    while index := index // 1000:
        parts.append(f"x{index % 1000:03}")
    return "/".join(reversed(parts))


def parse_path(path: str) -> TileName:
    """The tile that a path names, in the one spelling that the standard has."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise _no_tile(path)
    level: int | str = found["level"]
    if level not in (ENTRIES, LONG_ENTRIES):
        level = int(level)
    index = int(found["n"].replace("x", "").replace("/", ""))
    width = int(found["width"] or WIDTH)
    name = TileName(level, index, width)
    # Also refuses leading zero elements and a partial tile of full width.
    if name.path != path or width > WIDTH or (isinstance(level, int) and level > MAX_LEVEL):
        raise _no_tile(path)
    return name


def _no_tile(path: str) -> Malformed:
    return Malformed(
        "not the path of a tile",
        where=path[:100],
        do="Write tile/<level>/<index> as https://c2sp.org/tlog-tiles has it",
    )


def edge(size: int) -> Iterator[TileName]:
    """The last tile of every level of a tree of ``size`` entries, where it is partial."""
    for level in range(MAX_LEVEL + 1):
        count = size >> (HEIGHT * level)
        if count == 0:
            return
        if count % WIDTH:
            yield TileName(level, count // WIDTH, count % WIDTH)


def encode_bundle(entries: Sequence[bytes]) -> tuple[str, bytes]:
    """The bundle's level, ``entries`` or ``entries32``, and its bytes."""
    longest = max(map(len, entries), default=0)
    if longest > MAX_LONG_ENTRY:
        raise Malformed(f"an entry of {longest} bytes exceeds {MAX_LONG_ENTRY}", where="ledger")
    level, prefix = (ENTRIES, 2) if longest <= MAX_ENTRY else (LONG_ENTRIES, 4)
    data = b"".join(len(e).to_bytes(prefix, "big") + e for e in entries)
    return level, data


def decode_bundle(name: TileName, data: bytes) -> tuple[bytes, ...]:
    prefix = 2 if name.level == ENTRIES else 4
    entries, position = [], 0
    while position < len(data):
        start = position + prefix
        position = start + int.from_bytes(data[position:start], "big")
        entries.append(data[start:position])
    if position != len(data) or len(entries) != name.width:
        raise Damaged(f"it does not hold {name.width} whole entries", where=name.path)
    return tuple(entries)


def decode_tile(name: TileName, data: bytes) -> tuple[bytes, ...]:
    if len(data) != name.width * HASH_SIZE:
        raise Damaged(f"it does not hold {name.width} hashes", where=name.path)
    return tuple(data[i : i + HASH_SIZE] for i in range(0, len(data), HASH_SIZE))


class _TileWriter:
    """Writes the tiles of one log, from its first entry on."""

    def __init__(self, folder: TileFolder) -> None:
        self._folder = folder
        self.size = 0
        self._hashes: list[list[bytes]] = []
        self._entries: list[bytes] = []

    def append(self, entries: Iterable[bytes]) -> None:
        """Add entries; what becomes a full tile is written at once. Raises `Damaged`: another tile
        stands where one of these belongs."""
        for entry in entries:
            self._entries.append(entry)
            self.size += 1
            self._push(0, merkle.leaf_hash(entry))

    def _push(self, level: int, value: bytes) -> None:
        if len(self._hashes) == level:
            self._hashes.append([])
        hashes = self._hashes[level]
        hashes.append(value)
        if len(hashes) < WIDTH:
            return
        index = (self.size >> (HEIGHT * (level + 1))) - 1
        if level == 0:
            self._write_bundle(index, self._entries)
            self._entries = []
        self._write(TileName(level, index), b"".join(hashes))
        self._hashes[level] = []
        self._push(level + 1, merkle.root_of(hashes))

    @property
    def root(self) -> bytes:
        """The root of the tree so far, 32 bytes."""
        found: bytes | None = None
        for hashes in self._hashes:  # from the lowest level: the right edge, smallest tree first
            for peak in reversed(_peaks(hashes)):
                found = peak if found is None else merkle.node_hash(peak, found)
        return merkle.EMPTY_ROOT if found is None else found

    def finish(self, checkpoint: bytes) -> None:
        """Write what is partial, and then the checkpoint of this size."""
        if self._entries:
            self._write_bundle(self.size // WIDTH, self._entries)
        for name in edge(self.size):
            assert isinstance(name.level, int)
            self._write(name, b"".join(self._hashes[name.level]))
        self._folder.replace(CHECKPOINT, checkpoint)

    def _write_bundle(self, index: int, entries: Sequence[bytes]) -> None:
        level, data = encode_bundle(entries)
        self._write(TileName(level, index, len(entries)), data)

    def _write(self, name: TileName, data: bytes) -> None:
        there = self._folder.read(name.path)
        if there == data:
            return
        if there is None or _cut_short(there, data):
            self._folder.replace(name.path, data)
        else:
            raise Damaged(
                "a tile with other bytes is here already, and a tile never changes",
                where=name.path,
                do="Compare the ledger with the tiles; one of them was tampered with or damaged",
            )


def _cut_short(there: bytes, data: bytes) -> bool:
    """Whether ``there`` is what a power cut may leave of ``data``, and so no other ledger's. A file
    system may keep a file's length and not all of its blocks; those read as zeros."""
    return len(there) <= len(data) and all(
        found in (0, right) for found, right in zip(there, data, strict=False)
    )


def write_tiles(folder: TileFolder, entries: Iterable[bytes], checkpoint: bytes) -> bytes:
    """Write the tiles of a whole ledger, or what is missing of them; returns the root."""
    writer = _TileWriter(folder)
    writer.append(entries)
    writer.finish(checkpoint)
    return writer.root


def _peaks(hashes: Sequence[bytes]) -> list[bytes]:
    """The roots of the whole subtrees that ``hashes`` make, the largest first."""
    found, start = [], 0
    while start < len(hashes):
        width = 1 << ((len(hashes) - start).bit_length() - 1)
        found.append(merkle.root_of(hashes[start : start + width]))
        start += width
    return found


class _Tiles:
    """The tiles of a tree of one size, each read once; of bundles, which are large, the last one
    is kept. Nothing here is checked."""

    def __init__(self, folder: TileFolder, size: int) -> None:
        self._folder = folder
        self._size = size
        self._read: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._bundle: tuple[int, tuple[bytes, ...]] | None = None

    def tile(self, level: int, index: int) -> tuple[bytes, ...]:
        """The hashes that the tile has in a tree of this size."""
        found = self._read.get((level, index))
        if found is None:
            width = min((self._size >> (HEIGHT * level)) - index * WIDTH, WIDTH)
            name, data = self._fetch((level,), index, width)
            found = self._read[level, index] = decode_tile(name, data)[:width]
        return found

    def bundle(self, index: int, width: int) -> tuple[bytes, ...]:
        """The entries that the bundle has in a tree of this size."""
        if self._bundle is None or self._bundle[0] != index:
            name, data = self._fetch((ENTRIES, LONG_ENTRIES), index, width)
            self._bundle = index, decode_bundle(name, data)[:width]
        return self._bundle[1]

    def _fetch(self, levels: Sequence[int | str], index: int, width: int) -> tuple[TileName, bytes]:
        # A partial tile may be gone where the full one is there.
        for each in dict.fromkeys((width, WIDTH)):
            for level in levels:
                name = TileName(level, index, each)
                data = self._folder.read(name.path)
                if data is not None:
                    return name, data
        raise CouldNotCheck(
            "the tile is not on storage",
            where=TileName(levels[0], index, width).path,
            do="Write the ledger's tiles again with `govray store rebuild`",
        )

    def node(self, height: int, index: int) -> bytes:
        """The root of the whole subtree of ``2**height`` entries from ``index << height`` on."""
        level, inside = divmod(height, HEIGHT)
        start = index << inside
        hashes = self.tile(level, start // WIDTH)
        return merkle.root_of(hashes[start % WIDTH : start % WIDTH + (1 << inside)])

    def subtree(self, start: int, stop: int) -> bytes:
        """MTH(D[start:stop]), for ``start`` a multiple of the next power of two of the size."""
        peaks = []
        while start < stop:
            height = (stop - start).bit_length() - 1
            peaks.append(self.node(height, start >> height))
            start += 1 << height
        found = peaks.pop()
        while peaks:
            found = merkle.node_hash(peaks.pop(), found)
        return found


class TileReader:
    """Entries and proofs of one log, from its tiles, checked against a signed root. Methods raise
    as `root` does.

    Args:
        size: Of the signed checkpoint.
        root: Of the signed checkpoint, 32 bytes, from a source that the caller trusts.
    """

    def __init__(self, folder: TileFolder, size: int, root: bytes) -> None:
        self._tiles = _Tiles(folder, size)
        self.size = size
        self._root = root

    def root(self, size: int | None = None) -> bytes:
        """The root of the tree's first ``size`` entries; of all by default.

        Raises:
            Malformed: Not a size of this tree.
            Damaged: The tiles do not lead to the signed root.
            CouldNotCheck: A tile is missing.
        """
        size = self._checked_size(size)
        if size == 0:
            return merkle.EMPTY_ROOT
        found = self._tiles.subtree(0, size)
        proof = merkle.consistency_path(size, self.size, self._tiles.subtree)
        with _leading_to_the_root():
            merkle.verify_consistency(size, found, self.size, self._root, proof)
        return found

    def inclusion(self, index: int, size: int | None = None) -> tuple[bytes, tuple[bytes, ...]]:
        """The hash of a leaf, and PATH(index) in the tree of the first ``size`` entries."""
        size = self._checked_size(size)
        if not 0 <= index < size:
            raise Malformed(f"a tree of {size} leaves has no leaf {index}", where="ledger")
        root = self._root if size == self.size else self.root(size)
        leaf = self._tiles.node(0, index)
        proof = merkle.inclusion_path(index, size, self._tiles.subtree)
        with _leading_to_the_root():
            merkle.verify_inclusion(leaf, index, size, proof, root)
        return leaf, proof

    def consistency_proof(self, first: int, second: int | None = None) -> tuple[bytes, ...]:
        """PROOF(first) in the tree of the first ``second`` entries, as in `merkle`."""
        second = self._checked_size(second)
        if not 1 <= first <= second:
            raise Malformed(f"sizes {first} and {second} are not in order", where="ledger")
        proof = merkle.consistency_path(first, second, self._tiles.subtree)
        with _leading_to_the_root():
            merkle.verify_consistency(first, self.root(first), second, self.root(second), proof)
        return proof

    def entry(self, index: int) -> bytes:
        leaf, _ = self.inclusion(index)
        found = self.unchecked_entry(index)
        if merkle.leaf_hash(found) != leaf:
            raise Damaged("the entry is not the one in the signed tree", where=f"entry {index}")
        return found

    def entries(self, wanted: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """Those of all entries that are wanted. All are checked at once, by the root that they make
        together: each one's own proof is two hundred times the work."""
        hashes, found = bytearray(), []
        for index in range(self.size):
            entry = self.unchecked_entry(index)
            hashes += merkle.leaf_hash(entry)
            if wanted(entry):
                found.append(entry)
        if merkle.root_of_buffer(bytes(hashes)) != self._root:
            raise Damaged("the entries are not those of the signed checkpoint", where="ledger")
        return tuple(found)

    def unchecked_entry(self, index: int) -> bytes:
        """One entry as it lies on storage: to look for the one that is then checked."""
        if not 0 <= index < self.size:
            raise Malformed(f"a tree of {self.size} leaves has no leaf {index}", where="ledger")
        width = min(self.size - index // WIDTH * WIDTH, WIDTH)
        return self._tiles.bundle(index // WIDTH, width)[index % WIDTH]

    def _checked_size(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise Malformed(
                f"the signed tree has {self.size} entries, so it was never {size} long",
                where="ledger",
            )
        return size


@contextmanager
def _leading_to_the_root() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Damaged(
            f"the tiles are not those of the signed checkpoint: {error.what}",
            where="ledger",
            do="Write them again from the run's ledger",
        ) from None
