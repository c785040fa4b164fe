"""An index of a corpus's passages: which of them agree in a band, in the time of a few reads.

It is a folder of four files, numbers little-endian:

* ``passages``: the record and the signature of each, 516 bytes, in Merkle order of the records.
* ``bands``: for each band an entry of each passage, 8 bytes: the upper half of its key, then its
  number. Entries ascend, so what agrees stands side by side.
* ``directory``: how many records each of the corpus's parts has, the first entry of each block of
  bands, and the digests of all blocks.
* ``index.json``: the Merkle root, how passages and signatures are made, the sizes, and the
  directory's digest.

A question reads one block of 16 KiB for each of its passages and bands, and one of 33 KB for each
passage that agrees.

Invariants

* An index belongs to a Merkle root, and to one way of making signatures of one form of text.
  Any other is not opened.
* Opening reads the directory, 1.8 bytes a passage, and maps the rest. Each block is checked when
  it is read. What is not as it was written raises `Damaged`, and gives no answer.
* The candidates are those of comparing with every passage: keys that collide cost time only.
  Fewer than `LEAST_EQUAL` numbers in common are a phrase of both, for which no record is read.
* The same records give the same bytes, however they were read, but for the numbers of parts.

On disk: 1,028 bytes a passage and the directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal
from unicodedata import unidata_version

import numpy as np
import numpy.typing as npt

from govray.data.similarity.minhash import (
    ALGORITHM,
    BANDS,
    PASSAGE,
    PERMUTATIONS,
    SEED,
    Signatures,
    band_keys,
    in_bands,
)
from govray.errors import Damaged, Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.text_form import TEXT_FORM

DIGEST = 32

Digests = npt.NDArray[np.uint8]
"""SHA-256 of blocks, ``[blocks, DIGEST]``."""


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


HEADER, DIRECTORY, PASSAGES, ENTRIES = "index.json", "directory", "passages", "bands"
ROW = np.dtype([("record", "<u4"), ("signature", "<u4", (PERMUTATIONS,))])
"""A passage, 516 bytes."""
ENTRY = np.dtype("<u8")
BLOCK_ROWS = 64
BLOCK_ENTRIES = 2048
LEAST_EQUAL = 4
"""Fewest equal numbers of a passage pair."""
MOST = (1 << 32) - 1
"""Passages, records and parts of one index at most."""

_SCHEMA = "govray.dev/similarity/v2"
_MOST_HEADER = 4096
_NUMBER = np.uint64(0xFFFFFFFF)
_AT_ONCE = 1 << 16  # passages whose keys are in memory

Entries = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CorpusPassages:
    """All passages of one corpus: ``signatures[i]`` is of a passage of record ``owners[i]``."""

    owners: Places
    signatures: Signatures


@dataclass(frozen=True)
class PassageIndex:
    folder: Path
    parts: tuple[int, ...]
    size: int
    _fences: Entries  # [BANDS, blocks of a band]
    _band_digests: npt.NDArray[np.uint8]  # [BANDS, blocks of a band, DIGEST]
    _row_digests: Digests
    _rows: npt.NDArray[np.void]
    _entries: Entries  # [BANDS, passages]

    def __len__(self) -> int:
        return len(self._rows)

    def candidates(self, asked: Signatures) -> dict[int, float]:
        """Record → highest estimated Jaccard similarity of a passage that agrees in a band, and in
        `LEAST_EQUAL` numbers. ``asked``: signatures ``[n, PERMUTATIONS]``."""
        pairs = [np.zeros(0, np.uint64)]
        for band, keys in enumerate(band_keys(in_bands(asked)).T >> np.uint64(32)):
            pairs += self._agreeing(keys, band)
        # By passage, and each pair once.
        found = np.unique(np.concatenate(pairs))
        places, askers = np.divmod(found.astype(np.int64), max(1, len(asked)))
        best: dict[int, float] = {}
        for block, at in _by_block(places, BLOCK_ROWS):
            rows = self._block_of_rows(block)[places[at] - block * BLOCK_ROWS]
            equal = rows["signature"] == asked[askers[at]]
            agrees = equal.reshape(len(equal), BANDS, -1).all(axis=2).any(axis=1)
            agrees &= equal.sum(axis=1) >= LEAST_EQUAL
            alike = equal.mean(axis=1)
            for owner, estimate in zip(
                rows["record"][agrees].tolist(), alike[agrees].tolist(), strict=True
            ):
                best[owner] = max(best.get(owner, 0.0), estimate)
        if best and max(best) >= sum(self.parts):
            raise damaged(self.folder)
        return best

    def passages(self) -> CorpusPassages:
        owners = np.empty(len(self), np.int64)
        signatures = np.empty((len(self), PERMUTATIONS), np.uint32)
        for block in range(len(self._row_digests)):
            at = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
            rows = self._block_of_rows(block)
            owners[at], signatures[at] = rows["record"], rows["signature"]
        return CorpusPassages(owners, signatures)

    def check(self) -> None:
        """Read every block. Raises ``Damaged``: one is not as it was written."""
        for block in range(len(self._row_digests)):
            self._block_of_rows(block)
        for band, digests in enumerate(self._band_digests):
            for block in range(len(digests)):
                self._block_of_entries(band, block)

    def _agreeing(self, keys: Entries, band: int) -> Iterator[Entries]:
        """Pairs of a passage and an asked one whose keys are equal: passage · asked + asked one."""
        low = keys << np.uint64(32)
        high = low | _NUMBER
        fences = self._fences[band]
        first = np.maximum(fences.searchsorted(low, "right") - 1, 0).tolist()
        stop = fences.searchsorted(high, "right").tolist()
        read, entries = -1, low  # the block that was read last
        for asker in np.argsort(keys).tolist():
            for block in range(first[asker], stop[asker]):
                if block != read:
                    read, entries = block, self._block_of_entries(band, block)
                begin = entries.searchsorted(low[asker])
                end = entries.searchsorted(high[asker], "right")
                if begin == end:
                    continue
                places = entries[begin:end] & _NUMBER
                if places[-1] >= len(self):
                    raise damaged(self.folder)
                yield places * np.uint64(len(keys)) + np.uint64(asker)

    def _block_of_rows(self, block: int) -> npt.NDArray[np.void]:
        at = block * BLOCK_ROWS
        some = self._rows[at : at + BLOCK_ROWS]
        return np.frombuffer(checked(some, self._row_digests[block], self.folder), ROW)

    def _block_of_entries(self, band: int, block: int) -> Entries:
        at = block * BLOCK_ENTRIES
        some = self._entries[band, at : at + BLOCK_ENTRIES]
        return np.frombuffer(checked(some, self._band_digests[band, block], self.folder), ENTRY)


def open_index(folder: Path, root: str) -> PassageIndex:
    """The index in a folder, if it is of the records with this Merkle root.
    Raises ``Damaged``: it is of others, of another version, or not whole."""
    stated = _header(folder)
    count, records, parts = (
        _number(stated, key, folder) for key in ("passages", "records", "parts")
    )
    digest = str(stated.get("directory"))
    if stated != _stated(root, count, records, parts, digest):
        raise damaged(folder)
    blocks = -(-count // BLOCK_ENTRIES)
    row_blocks = -(-count // BLOCK_ROWS)
    sizes = (8 * parts, 8 * BANDS * blocks, DIGEST * BANDS * blocks, DIGEST * row_blocks)
    expected = {
        DIRECTORY: sum(sizes),
        PASSAGES: ROW.itemsize * count,
        ENTRIES: ENTRY.itemsize * BANDS * count,
    }
    if any((folder / name).stat().st_size != size for name, size in expected.items()):
        raise damaged(folder)
    directory = (folder / DIRECTORY).read_bytes()
    if canonical_json.sha256(directory) != digest:
        raise damaged(folder)
    stops = [*accumulate(sizes)]
    cut = [directory[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
    counts = tuple(np.frombuffer(cut[0], "<u8").tolist())
    if sum(counts) != records:
        raise damaged(folder)
    return PassageIndex(
        folder,
        counts,
        sum(expected.values()) + (folder / HEADER).stat().st_size,
        np.frombuffer(cut[1], ENTRY).reshape(BANDS, blocks),
        np.frombuffer(cut[2], np.uint8).reshape(BANDS, blocks, DIGEST),
        np.frombuffer(cut[3], np.uint8).reshape(row_blocks, DIGEST),
        _mapped(folder / PASSAGES, ROW, (count,)),
        _mapped(folder / ENTRIES, ENTRY, (BANDS, count)),
    )


def write_index(
    folder: Path, root: str, parts: Sequence[int], rows: Iterator[npt.NDArray[np.void]]
) -> None:
    """Write the files of an index, readable by their owner only.

    Args:
        folder: An empty folder, which nobody opens yet.
        root: Merkle root of the records, ``sha256:<hex>``.
        parts: The records of each of the corpus's files.
        rows: The passages (``ROW``), in order, in pieces.
    """
    with _created(folder / PASSAGES) as file:
        for some in rows:
            some.tofile(file)
    count = (folder / PASSAGES).stat().st_size // ROW.itemsize
    passages = _mapped(folder / PASSAGES, ROW, (count,))
    entries = _write_entries(folder / ENTRIES, passages)
    directory = b"".join(
        [
            np.array(parts, "<u8").tobytes(),
            entries[:, ::BLOCK_ENTRIES].tobytes(),
            *(_digests(band, BLOCK_ENTRIES) for band in entries),
            _digests(passages, BLOCK_ROWS),
        ]
    )
    with _created(folder / DIRECTORY) as file:
        file.write(directory)
    digest = canonical_json.sha256(directory)
    with _created(folder / HEADER) as file:
        file.write(canonical_json.encode(_stated(root, count, sum(parts), len(parts), digest)))


def _write_entries(path: Path, passages: npt.NDArray[np.void]) -> Entries:
    """Write the entries of each band, ascending, ``[BANDS, passages]``. They are sorted where they
    lie: of a file that is mapped the system holds what it has room for."""
    count = len(passages)
    with _created(path) as file:
        for start in range(0, count, _AT_ONCE):
            some = passages[start : start + _AT_ONCE]
            numbers = np.arange(start, start + len(some), dtype=np.uint64)
            keys = band_keys(in_bands(some["signature"])) & ~_NUMBER
            # By writing, not by mapping: where the disk is full that is an error.
            for band, entries in enumerate((keys | numbers[:, None]).T):
                file.seek(ENTRY.itemsize * (band * count + start))
                file.write(entries.tobytes())
    made: Entries = _mapped(path, ENTRY, (BANDS, count), "r+")
    for band in made:
        band.sort()
    return made


def _digests(some: npt.NDArray[Any], block: int) -> bytes:
    """The SHA-256 of each block of so many."""
    starts = range(0, len(some), block)
    return b"".join(hashlib.sha256(some[at : at + block].tobytes()).digest() for at in starts)


def _created(path: Path) -> Any:
    # Made from records, which may be confidential.
    path.touch(mode=0o600, exist_ok=False)
    return path.open("wb")


def _header(folder: Path) -> dict[str, Any]:
    with (folder / HEADER).open("rb") as file:
        data = file.read(_MOST_HEADER + 1)
    try:
        stated = canonical_json.parse_canonical(data, where=str(folder / HEADER))
    except Malformed:
        raise damaged(folder) from None
    if len(data) > _MOST_HEADER or not isinstance(stated, dict):
        raise damaged(folder)
    return stated


def _number(stated: dict[str, Any], key: str, folder: Path) -> int:
    value = stated.get(key)
    if type(value) is not int or not 0 <= value <= MOST:
        raise damaged(folder)
    return value


def _stated(root: str, passages: int, records: int, parts: int, directory: str) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "root": root,
        "algorithm": ALGORITHM,
        "text": TEXT_FORM,
        "unicode": unidata_version,
        "passage": PASSAGE,
        "permutations": PERMUTATIONS,
        "bands": BANDS,
        "seed": SEED,
        "blocks": [BLOCK_ROWS, BLOCK_ENTRIES],
        "passages": passages,
        "records": records,
        "parts": parts,
        "directory": directory,
    }


def _mapped(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], mode: Literal["r", "r+"] = "r"
) -> Any:
    if not shape[-1]:  # an empty file cannot be mapped
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(path, dtype, mode, shape=shape))


def _by_block(places: Places, size: int) -> Iterator[tuple[int, slice]]:
    """Ascending places, cut where a block of ``size`` ends: each block, and its places."""
    blocks = places // size
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    for start, stop in pairwise([*starts, len(places)]):
        yield int(blocks[start]), slice(start, stop)
