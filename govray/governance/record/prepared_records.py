"""The records of a prepare manifest: where each stands, checked against what was signed.

A manifest states counts and digests. The records themselves come as columns, part by part, from
the files that it binds. A reader of those files is a function that returns a part's columns. Here
they are compared with the manifest before they are used.

Invariants

* No part is used whose records' digest is not the manifest's.
* A few parts are in memory at a time, whatever their number.

Records count through a corpus's parts in Merkle order, and its canaries behind them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from govray.errors import Refused
from govray.governance.formats import merkle
from govray.governance.formats.record_columns import (
    RESERVE,
    TRAIN,
    ManifestRecord,
    RecordColumns,
    Rows,
    Split,
)
from govray.governance.policy import record_commitment
from govray.governance.record.plan_rows import mix_all
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    Representatives,
    RowTargets,
    check_canaries,
    check_row_targets,
    check_splits,
    check_streams,
)

ReadPart: TypeAlias = Callable[[PreparedCorpus, int], RecordColumns]
"""Gives the records of a corpus's part, by the part's number."""

_DO = "Get the prepared folder's files as they were signed."
_AT_ONCE = 1 << 16
PARTS_KEPT = 16
"""Parts that are kept in memory."""


class RecordSpan(NamedTuple):
    """A record's share of a row: its index in the corpus and the half-open range of its tokens."""

    record: int
    start: int
    stop: int


class RecordCounts(Protocol):
    """Whatever can say how many records some rows hold."""

    def distinct_records(self, corpus: str, rows: Rows | None) -> int:
        """How many records any of these rows, ascending and distinct, holds tokens of.
        None stands for all of the corpus's training rows."""

    def of_group(self, group: str) -> RecordCounts:
        """The same for rows that updated a layer group, of which somebody may state other
        counts."""


class TargetCounts(Protocol):
    """Whatever can say how many loss targets rows have."""

    def targets_of(self, corpus: str, rows: Rows) -> Rows:
        """Loss targets of each of many training rows, any shape, same shape."""


class PreparedRecords:
    """The records of a manifest.

    Args:
        manifest: As verified.
        read: Where they come from; what it raises is raised.
    """

    def __init__(self, manifest: Manifest, read: ReadPart) -> None:
        self._manifest = manifest
        self._read = read
        self._part = lru_cache(maxsize=PARTS_KEPT)(self._open)
        self._targets: dict[str, npt.NDArray[np.uint32]] = {}

    def part(self, corpus: str, number: int) -> PartRecords:
        """The records of one part.
        Raises ``Refused``: they are not those that the manifest binds."""
        return self._part(corpus, number)

    def _open(self, corpus: str, number: int) -> PartRecords:
        prepared = self._manifest.corpus(corpus)
        part = prepared.parts[number]
        columns = self._read(prepared, number)
        start, stop = part.records
        if (
            len(columns) != stop - start
            or not columns.within_bounds
            or columns.digest != part.records_digest
        ):
            raise Refused(
                "the records are not those that the manifest was signed for",
                where=part.records_file,
                do=_DO,
            )
        self._check_targets(part, columns)
        reserve_rows = part.reserve.rows if part.reserve else 0
        return PartRecords(columns, self._manifest.context + 1, part.rows, reserve_rows)

    @staticmethod
    def _check_targets(part: Part, columns: RecordColumns) -> None:
        stated, found = part.targets, columns.row_targets
        if stated is not None and (
            found is None or found.size != part.rows or RowTargets.of(found) != stated
        ):
            raise Refused(
                "the loss targets of its rows are not those that the manifest was signed for",
                where=part.records_file,
                do=_DO,
            )

    def targets_of(self, corpus: str, rows: Rows) -> Rows:
        """Loss targets of each of many training rows, any shape, same shape.
        Where rows are masked, 4 bytes stay in memory for each row of the corpus."""
        if not self._manifest.masked:
            return self._manifest.targets_of(corpus, rows)
        if corpus not in self._targets:
            parts = range(len(self._manifest.corpus(corpus).parts))
            counts = [self.part(corpus, number).columns.row_targets for number in parts]
            self._targets[corpus] = np.concatenate(
                [np.empty(0, np.uint32), *(each for each in counts if each is not None)],
                dtype=np.uint32,
                casting="unsafe",
            )
        return self._targets[corpus][rows].astype(np.int64)

    def columns(self, corpus: str) -> Iterator[RecordColumns]:
        """The corpus's own records, part by part."""
        for number in range(len(self._manifest.corpus(corpus).parts)):
            yield self.part(corpus, number).columns

    def check(self) -> dict[str, str]:
        """The Merkle root of each corpus's records, once all that follows from them is compared.

        Splits follow from entries and salt, and part by part tokens, counts and rows from the
        records. Each family has its representative among them. None of them is a canary.

        Returns:
            Corpus → ``sha256:<hex>``.
        """
        representatives = Representatives()

        def checked(corpus: str) -> Iterator[RecordColumns]:
            for number in range(len(self._manifest.corpus(corpus).parts)):
                columns = self.check_part(corpus, number)
                representatives.add(columns)
                yield columns
            representatives.end_corpus(corpus)

        try:
            roots = {
                each.corpus: self._root(checked(each.corpus)) for each in self._manifest.corpora
            }
            representatives.end()
        except ValueError as error:
            raise Refused(str(error), where="records", do=_DO) from None
        return roots

    def check_part(self, corpus: str, number: int) -> RecordColumns:
        """The same of one part; returns its records."""
        part, columns = (
            self._manifest.corpus(corpus).parts[number],
            self.part(corpus, number).columns,
        )
        try:
            check_splits(self._manifest, corpus, part.records[0], columns)
            check_streams(corpus, number, part, columns)
            check_canaries(self._manifest, columns)
            check_row_targets(corpus, number, self._manifest, columns)
        except ValueError as error:
            raise Refused(str(error), where=f"records of {corpus}", do=_DO) from None
        return columns

    def merkle_root(self, corpus: str) -> str:
        """The RFC 9162 root over the corpus's records, ``sha256:<hex>``."""
        return self._root(self.columns(corpus))

    @staticmethod
    def _root(parts: Iterable[RecordColumns]) -> str:
        found = merkle.BulkRoot()
        for columns in parts:
            found.add_hashes(columns.entries.tobytes())
        return "sha256:" + found.root().hex()

    def count(self, corpus: str) -> int:
        """How many records of its own the corpus has; its canaries count on from there."""
        return self._manifest.records(corpus)

    def record(self, corpus: str, index: int) -> ManifestRecord:
        """A record of a corpus; behind its own ones, its canaries."""
        prepared, own = self._manifest.corpus(corpus), self.count(corpus)
        if 0 <= index < own:
            number, first = self._part_of(prepared, index)
            return self.part(corpus, number).columns.record(index - first)
        planted = prepared.planted.records if prepared.planted else ()
        if not 0 <= index - own < len(planted):
            raise ValueError(f"record {index} of {corpus} does not exist")
        return planted[index - own]

    def family(self, corpus: str, index: int) -> str:
        """The entry, in hex, of the representative of a record's family.
        The record's own where records are split one by one, and of a canary."""
        prepared = self._manifest.corpus(corpus)
        if not self._manifest.by_family or not 0 <= index < self.count(corpus):
            return self.record(corpus, index).entry
        number, first = self._part_of(prepared, index)
        entry: bytes = self.part(corpus, number).columns.drawn_by[index - first].tobytes()
        return entry.hex()

    def row_records(self, corpus: str, row: int, split: Split = "train") -> tuple[RecordSpan, ...]:
        """The records that a row holds tokens of, in order; of the reserve with that ``split``.

        Ranges are in the record's own tokens, without its separator; a record of which the row
        holds the separator alone is not listed.
        """
        prepared = self._manifest.corpus(corpus)
        shards = [part.reserve if split == "reserve" else part for part in prepared.parts]
        before = row
        for number, shard in enumerate(shards):
            rows = shard.rows if shard else 0
            if 0 <= before < rows:
                first = prepared.parts[number].records[0]
                spans = self.part(corpus, number).spans(before, split)
                return tuple(span._replace(record=first + span.record) for span in spans)
            before -= rows
        planted = prepared.planted if split == "train" else None
        if row < 0 or planted is None or before >= planted.rows:
            raise ValueError(f"row {row} of {corpus} is outside its rows")
        index = before // planted.canaries.repeats
        return (RecordSpan(self.count(corpus) + index, 0, planted.records[index].tokens),)

    def designated(self, corpus: str, rows: Rows, split: Split, key: int) -> tuple[str | None, ...]:
        """The entry of the record that each row stands for; None where it stands for none.

        A row's *holder* is the record that it has most tokens of, the first of equals. Of the rows
        that a record holds one is designated: which one follows from its entry and the key. So
        every record that holds a row has one row, whatever its length. Where the reserve is split
        by family, only the record has one that stands for its family in the corpus.

        Args:
            rows: ``[n]`` of its own rows, or of its reserve: not those of canaries.
            split: ``train`` or ``reserve``.
            key: 64 bits, such as the run's seed gives.
        """
        parts = self._manifest.corpus(corpus).parts
        shards = [part.reserve if split == "reserve" else part for part in parts]
        ends = np.cumsum([shard.rows if shard else 0 for shard in shards], dtype=np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < (ends[-1] if ends.size else 0):
            raise ValueError(f"a row of {corpus} is outside its rows")
        numbers = np.searchsorted(ends, rows, side="right")
        found: list[str | None] = [None] * rows.size
        for number in np.unique(numbers).tolist():  # each part is opened once
            places = np.flatnonzero(numbers == number)
            first = int(ends[number - 1]) if number else 0
            entries = self.part(corpus, number).designated(rows[places] - first, split, key)
            for place, entry in zip(places.tolist(), entries, strict=True):
                found[place] = entry
        return tuple(found)

    def rows_beside(self, corpus: str, row: int, split: Split, count: int) -> list[int]:
        """At most ``count`` rows of those that a row's holder holds: the row, those behind it, and
        then the first ones. ``row`` and ``split``: as in `designated`."""
        first = 0
        for number, part in enumerate(self._manifest.corpus(corpus).parts):
            shard = part.reserve if split == "reserve" else part
            stop = first + (shard.rows if shard else 0)
            if first <= row < stop:
                own = self.part(corpus, number).rows_beside(row - first, split, count)
                return [first + each for each in own]
            first = stop
        raise ValueError(f"row {row} of {corpus} is outside its rows")

    def places(self, corpus: str, rows: Rows) -> Rows:
        """The training row at which each reserve row would lie, had its holder trained.
        At the end of a part, the part's last row. ``rows`` and the result: ``[n]``."""
        parts = self._manifest.corpus(corpus).parts
        held = np.cumsum([part.reserve.rows if part.reserve else 0 for part in parts])
        before = np.cumsum([0, *(part.rows for part in parts)])
        numbers = np.searchsorted(held, rows, side="right")
        found = np.empty(rows.size, np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            first = int(held[number - 1]) if number else 0
            found[here] = before[number] + self.part(corpus, number).places(rows[here] - first)
        last: Rows = np.minimum(found, before[-1] - 1)
        return last

    def record_rows(self, corpus: str, record: int) -> range:
        """The rows that hold tokens of a record; empty if it does not train."""
        prepared, own = self._manifest.corpus(corpus), self.count(corpus)
        planted = prepared.planted
        if planted and own <= record < own + len(planted.records):
            repeats = planted.canaries.repeats
            first = self._manifest.own_rows(corpus) + (record - own) * repeats
            return range(first, first + repeats)
        if not 0 <= record < own:
            raise ValueError(f"record {record} of {corpus} does not exist")
        number, first = self._part_of(prepared, record)
        rows = self.part(corpus, number).rows_of(record - first)
        before = sum(part.rows for part in prepared.parts[:number]) if rows else 0
        return range(before + rows.start, before + rows.stop)

    def distinct_records(self, corpus: str, rows: Rows | None) -> int:
        """How many records any of these rows, ascending and distinct, holds tokens of."""

        def held(number: int, some: Rows | None) -> int:
            if some is None:  # nothing has to be read
                return self._manifest.corpus(corpus).parts[number].splits.train
            return self.part(corpus, number).distinct(some)

        return _distinct(self._manifest, corpus, rows, held)

    def of_group(self, group: str) -> PreparedRecords:
        """These: how many records some rows hold is the same everywhere."""
        return self

    def find(
        self, sha256: str, secrets: Mapping[str, bytes] | None = None
    ) -> tuple[tuple[str, int], ...]:
        """Every (corpus, record index) of the record with this SHA-256 (hex), sorted.
        ``secrets`` are those of corpora, by name. In the others only canaries are found."""
        digest = bytes.fromhex(sha256)
        found: list[tuple[str, int]] = []
        for prepared in self._manifest.corpora:
            name, own = prepared.corpus, self.count(prepared.corpus)
            secret = (secrets or {}).get(name)
            planted = prepared.planted.records if prepared.planted else ()
            found += [(name, own + i) for i, each in enumerate(planted) if each.entry == sha256]
            if secret is None:
                continue
            entry = record_commitment.entry(digest, secret)
            for number, columns in enumerate(self.columns(name)):
                first = prepared.parts[number].records[0]
                found += [(name, first + place) for place in columns.places(entry)]
        return tuple(sorted(found))

    @staticmethod
    def _part_of(prepared: PreparedCorpus, record: int) -> tuple[int, int]:
        """The part that holds a record, and the part's first record."""
        number = bisect_right(prepared.parts, record, key=lambda part: part.records[1])
        return number, prepared.parts[number].records[0]


class PartRecords:
    """The records of one part, and the rows that they make.

    Rows never cross parts, so each part's arithmetic is its own. Here records and rows count from
    0 within the part.

    Args:
        width: Tokens of a full row: T+1.
        rows: Packed rows of the training records.
        reserve_rows: Those of the reserve; 0 if it was not packed.
    """

    def __init__(self, columns: RecordColumns, width: int, rows: int, reserve_rows: int) -> None:
        self.columns = columns
        self._width = width
        self._counts = {TRAIN: rows, RESERVE: reserve_rows}

    @cached_property
    def _train(self) -> _Stream:
        return _Stream(self.columns, TRAIN, self._width, self._counts[TRAIN])

    @cached_property
    def _reserve(self) -> _Stream:
        return _Stream(self.columns, RESERVE, self._width, self._counts[RESERVE])

    def spans(self, row: int, split: Split = "train") -> Iterator[RecordSpan]:
        """The records that a row holds tokens of, in order."""
        return (self._reserve if split == "reserve" else self._train).spans(row)

    def rows_of(self, record: int) -> range:
        """The training rows that hold tokens of a record; empty if it does not train."""
        return self._train.rows_of(record)

    def designated(self, rows: Rows, split: Split, key: int) -> list[str | None]:
        """The entry of the record that each row stands for; None where it stands for none."""
        return (self._reserve if split == "reserve" else self._train).designated(rows, key)

    def rows_beside(self, row: int, split: Split, count: int) -> list[int]:
        """At most ``count`` rows that a row's holder holds, from this one on, in a circle."""
        return (self._reserve if split == "reserve" else self._train).beside(row, count)

    def places(self, rows: Rows) -> Rows:
        """The training row at which each reserve row would lie, had its holder trained."""
        records, offsets = self._reserve.holding(rows)
        return self._train.place_of(records, offsets)

    def distinct(self, rows: Rows | None) -> int:
        """How many records any of these training rows, ascending and distinct, holds tokens of."""
        return self._train.distinct(rows)


class _Stream:
    """The records of one split behind each other, and the rows that they are cut into.
    ``starts[j]`` is where the split's j-th record begins, its separator follows it."""

    def __init__(self, columns: RecordColumns, split: int, width: int, rows: int) -> None:
        self._columns = columns
        self._width = width
        self._rows = rows
        self._records = np.flatnonzero(columns.splits == split)
        self._standing = columns.standing[self._records]
        self._starts = np.zeros(self._records.size + 1, np.int64)
        np.cumsum(columns.tokens[self._records] + 1, out=self._starts[1:])

    def spans(self, row: int) -> Iterator[RecordSpan]:
        start = row * self._width
        stop = min(start + self._width, int(self._starts[-1]))
        begins = int(np.searchsorted(self._starts, start, side="right")) - 1
        for j in range(begins, int(np.searchsorted(self._starts, stop))):
            begin, record = int(self._starts[j]), int(self._records[j])
            first = max(start - begin, 0)
            last = min(stop - begin, int(self._columns.tokens[record]))
            if first < last:
                yield RecordSpan(record, first, last)

    def rows_of(self, record: int) -> range:
        j = int(np.searchsorted(self._records, record))
        if j == self._records.size or self._records[j] != record:
            return range(0)
        start = int(self._starts[j])
        stop = start + int(self._columns.tokens[record])
        # A dropped last token lies past the last row.
        first, last = start // self._width, (stop - 1) // self._width + 1
        return range(min(first, self._rows), min(last, self._rows))

    def holding(self, rows: Rows) -> tuple[Rows, Rows]:
        """Of each row the record, by its place in the part, that it has most tokens of. And the
        row's number among those that the record holds."""
        holders = self._holders(rows)
        return self._records[holders], rows - self._held(holders)[0]

    def place_of(self, records: Rows, offsets: Rows) -> Rows:
        """So many rows behind the one where a record begins, or would begin if it is of another
        split."""
        starts = self._starts[np.searchsorted(self._records, records)]
        found: Rows = np.minimum(starts // self._width + offsets, max(self._rows - 1, 0))
        return found

    def beside(self, row: int, count: int) -> list[int]:
        firsts, lasts = self._held(self._holders(np.array([row])))
        first, rows = int(firsts[0]), int(lasts[0] - firsts[0]) + 1
        return [first + (row - first + each) % rows for each in range(min(count, rows))]

    def designated(self, rows: Rows, key: int) -> list[str | None]:
        holders = self._holders(rows)
        first, last = self._held(holders)
        entries = self._columns.entries[self._records[holders]]
        drawn = mix_all(
            entries[:, :8].copy().view(">u8").ravel().astype(np.uint64) ^ np.uint64(key)
        )
        chosen = first + (drawn % (last - first + 1).astype(np.uint64)).astype(np.int64)
        # Near copies lie on one side together, so one of a corpus's stands for its family.
        alone = self._standing[holders]
        return [
            entry.tobytes().hex() if told else None
            for entry, told in zip(entries, ((rows == chosen) & alone).tolist(), strict=True)
        ]

    def _held(self, holders: Rows) -> tuple[Rows, Rows]:
        """The first and the last row that each of these records holds; it holds one at least."""
        tokens = self._columns.tokens[self._records[holders]]
        # Only at its ends can a record share a row.
        first = self._starts[holders] // self._width
        last = np.minimum((self._starts[holders] + tokens - 1) // self._width, self._rows - 1)
        first += self._holders(first) != holders
        last -= self._holders(last) != holders
        return first, last

    def _holders(self, rows: Rows) -> Rows:
        """Which of the split's records each row has most tokens of, the first of equals."""
        starts = rows * self._width
        stops = np.minimum(starts + self._width, self._starts[-1])
        first = np.searchsorted(self._starts, starts, side="right") - 1
        counts = np.searchsorted(self._starts, stops) - first
        begins = np.cumsum(counts) - counts
        # Every record of every row, row by row.
        row = np.repeat(np.arange(rows.size), counts)
        j = np.arange(row.size) - begins[row] + first[row]
        begin = self._starts[j]
        end = begin + self._columns.tokens[self._records[j]]
        held = np.minimum(end, stops[row]) - np.maximum(begin, starts[row])
        # The largest share, and of equal ones the first.
        best: Rows = j[np.lexsort((j, -held, row))[begins]]
        return best

    def distinct(self, rows: Rows | None) -> int:
        if rows is None:  # each of their tokens but a last separator is in some row
            return self._records.size
        found = 0
        for at in range(0, self._records.size, _AT_ONCE):
            some = slice(at, at + _AT_ONCE)
            start = self._starts[:-1][some]
            stop = start + self._columns.tokens[self._records[some]]
            first = np.minimum(start // self._width, self._rows)
            last = np.minimum((stop - 1) // self._width + 1, self._rows)
            below = np.searchsorted(rows, last) - np.searchsorted(rows, first)
            found += int(np.count_nonzero(below))
        return found


class StatedRecords:
    """How many records rows hold, by somebody's word, as far as the counts allow it.

    Args:
        stated: Corpus → records.
        by_group: Layer group → corpus → records.
    """

    def __init__(
        self,
        manifest: Manifest,
        stated: Mapping[str, int],
        by_group: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> None:
        self._manifest = manifest
        self._stated = stated
        self._by_group = by_group

    def of_group(self, group: str) -> StatedRecords:
        """What is stated of a layer group."""
        return StatedRecords(self._manifest, self._by_group.get(group, {}))

    def distinct_records(self, corpus: str, rows: Rows | None) -> int:
        """The stated count of a corpus.
        Raises ``Refused``: rows of these numbers cannot hold as many records, or as few."""

        def most(number: int, some: Rows | None) -> int:
            train = self._part(corpus, number).splits.train
            # A row holds at most one record for two tokens, and the rest of one that began before.
            most_of_row = (self._manifest.context + 1) // 2 + 1
            return train if some is None else min(train, some.size * most_of_row)

        def least(number: int, some: Rows | None) -> int:
            return self._part(corpus, number).splits.train if some is None else 1

        stated = self._stated.get(corpus, 0)
        low = _distinct(self._manifest, corpus, rows, least)
        high = _distinct(self._manifest, corpus, rows, most)
        if not low <= stated <= high:
            raise Refused(
                f"it states {stated} records, the rows that were read hold {low} to {high}",
                where=f"coverage of {corpus}",
            )
        return stated

    def _part(self, corpus: str, number: int) -> Part:
        return self._manifest.corpus(corpus).parts[number]


def _distinct(
    manifest: Manifest, corpus: str, rows: Rows | None, of_part: Callable[[int, Rows | None], int]
) -> int:
    """Records that rows of a corpus hold, its canaries included; no record is in two parts.
    ``of_part`` gives those of a part, for some of its rows, or for None: all of them."""
    prepared = manifest.corpus(corpus)
    found, first = 0, 0
    for number, part in enumerate(prepared.parts):
        some = None if rows is None else _between(rows, first, first + part.rows)
        if some is None or some.size == part.rows:
            found += of_part(number, None) if part.rows else 0
        elif some.size:
            found += of_part(number, some)
        first += part.rows
    if (planted := prepared.planted) is not None:
        if rows is None:
            return found + len(planted.records)
        behind = _between(rows, first, first + planted.rows)
        found += np.unique(behind // planted.canaries.repeats).size
    return found


def _between(rows: Rows, start: int, stop: int) -> Rows:
    """Those of ascending rows that are in ``[start, stop)``, counted from there."""
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last] - start
