"""Records of a corpus as columns: entry, tokens and split of each, in Merkle order.

The encoding that a manifest's digests bind (`RecordColumns.digest`). Nothing here makes a Python
object for each record. What follows from columns is in ``record/prepared_records.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from govray.governance.formats.bounds import MAX_EXACT, Hex256, Natural

Split = Literal["train", "reserve", "empty"]
SPLITS: tuple[Split, ...] = ("train", "reserve", "empty")
"""A split's code in columns is its place here."""
TRAIN, RESERVE, EMPTY = range(len(SPLITS))

Rows: TypeAlias = npt.NDArray[np.int64]

_HALF = 32
_AT_ONCE = 1 << 16
_PACKED = np.dtype([("entry", "V32"), ("tokens", "<u8"), ("split", "u1")])
_PACKED_FAMILY = np.dtype([*_PACKED.descr, ("family", "V32"), ("standing", "u1")])


class ManifestRecord(NamedTuple):
    """One record in Merkle order, by its entry in hex; in JSON an array of three."""

    entry: Hex256
    tokens: Natural
    split: Split


@dataclass(frozen=True, eq=False)
class RecordColumns:
    """Consecutive records in Merkle order.

    Attributes:
        entries: ``[n, 32]`` bytes, contiguous (``policy/record_commitment.py``).
        tokens: ``[n]`` tokens of each record, without its separator; below 2**53.
        splits: ``[n]`` codes, places in ``SPLITS``.
        row_targets: ``[rows]`` loss targets of each training row that a part's records make, where
            its file states them. No part of ``digest``.
        families: ``[n, 32]``, where records are split by family: the entry of each one's
            representative, the last of its family in all corpora. None where each is split by
            itself.
        represented: ``[n]``, with ``families``: which records have a later one of their family in
            their corpus, which stands for it.
    """

    entries: npt.NDArray[np.uint8]
    tokens: Rows
    splits: npt.NDArray[np.uint8]
    row_targets: Rows | None = None
    families: npt.NDArray[np.uint8] | None = None
    represented: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def slice(self, start: int, stop: int) -> RecordColumns:
        """The records ``[start, stop)``; shares memory."""
        at = slice(start, stop)
        found = RecordColumns(self.entries[at], self.tokens[at], self.splits[at])
        if self.families is None or self.represented is None:
            return found
        return replace(found, families=self.families[at], represented=self.represented[at])

    @property
    def drawn_by(self) -> npt.NDArray[np.uint8]:
        """The entries that decide the records' splits, ``[n, 32]``."""
        return self.entries if self.families is None else self.families

    @property
    def standing(self) -> npt.NDArray[np.bool_]:
        """Which records stand for their family in their corpus, ``[n]``."""
        return np.ones(len(self), np.bool_) if self.represented is None else ~self.represented

    def record(self, index: int) -> ManifestRecord:
        """One record as a document has it."""
        return ManifestRecord(
            self.entries[index].tobytes().hex(),
            int(self.tokens[index]),
            SPLITS[self.splits[index]],
        )

    @classmethod
    def of(cls, records: Iterable[ManifestRecord]) -> RecordColumns:
        """Columns of records that stand in a document."""
        rows = list(records)
        entries = bytes.fromhex("".join(row.entry for row in rows))
        codes = {split: code for code, split in enumerate(SPLITS)}
        return cls(
            np.frombuffer(entries, np.uint8).reshape(-1, 32),
            np.fromiter((row.tokens for row in rows), np.int64, len(rows)),
            np.fromiter((codes[row.split] for row in rows), np.uint8, len(rows)),
        )

    @property
    def within_bounds(self) -> bool:
        """Whether token counts and split codes are such as a document may state."""
        if not len(self):
            return True
        fits = self.tokens.min() >= 0 and self.tokens.max() <= MAX_EXACT
        return bool(fits and self.splits.max() < len(SPLITS))

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` over the records one by one: entry, tokens (uint64, little-endian),
        split (one byte, its code). Where there are families, also the representative's entry and
        whether it stands for its family (one byte)."""
        found = hashlib.sha256()
        form = _PACKED if self.families is None else _PACKED_FAMILY
        for start in range(0, len(self), _AT_ONCE):
            some = self.slice(start, start + _AT_ONCE)
            packed = np.empty(len(some), form)
            packed["entry"] = np.ascontiguousarray(some.entries).view("V32").ravel()
            packed["tokens"] = some.tokens
            packed["split"] = some.splits
            if some.families is not None:
                packed["family"] = np.ascontiguousarray(some.families).view("V32").ravel()
                packed["standing"] = some.standing
            found.update(packed.tobytes())
        return "sha256:" + found.hexdigest()

    def counts(self) -> tuple[int, ...]:
        """Records of each split, in the order of ``SPLITS``."""
        return tuple(np.bincount(self.splits, minlength=len(SPLITS)).tolist())

    def stream_tokens(self, split: int) -> int:
        """Tokens of a split's records with their separators: exact, however many they state."""
        tokens = self.tokens[self.splits == split]
        high, low = int((tokens >> _HALF).sum()), int((tokens & ((1 << _HALF) - 1)).sum())
        return (high << _HALF) + low + len(tokens)

    def places(self, entry: bytes) -> list[int]:
        """The records with this entry, ascending."""
        first = np.ascontiguousarray(self.entries).view(np.uint64)[:, 0]
        near = np.flatnonzero(first == np.frombuffer(entry, np.uint64)[0])
        return [int(i) for i in near if self.entries[i].tobytes() == entry]

    def any_of(self, entries: Iterable[bytes]) -> bool:
        """Whether a record has one of these entries; they are few."""
        return any(self.places(entry) for entry in entries)
