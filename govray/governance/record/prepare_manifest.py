"""The prepare manifest: which records became which packed rows, and what may train.

It is signed by the operator, pinned by the batch plan's digest and checked when shards are read. So
it binds what the trainer reads to the Merkle roots that the credentials sign. It states the records
of every corpus in Merkle order, how many tokens each has, and the digests of the shards' row
groups. A record stands there by its entry (``policy/record_commitment.py``): its leaf, or its plain
hash in corpora without commitments. The manifest does *not* state which tokens a row holds: that is
arithmetic, and this module is the one place that does it.

Packing

Per corpus and part (one ``records-*.parquet`` file) the **part stream** is the tokens of the part's
training records in order. One separator token follows each record. The stream is cut into rows of
T+1 tokens (T = ``context``) without overlap: row i covers ``[i(T+1), (i+1)(T+1))``. The last row
may be shorter; a last row of one token has no loss target and is dropped. A row of k tokens has k−1
loss targets. Rows count through a corpus's parts in order.

Reserve

A record is held in reserve when ``HMAC-SHA256(salt, entry) < share · 2**256``, both read as
big-endian integers. So equal records of one corpus share their split. Those of two corpora do so
only where neither has commitments. The salt is drawn after the suppliers have signed, so a supplier
cannot choose what is held back. A verifier can recompute the choice. A record with no tokens is
``empty`` whatever its entry.

Reserve records are packed by the same rule into a shard of their own beside the part's, if they
make a row. They are the reference for what a model has learned of a corpus. No plan reads them.

Canaries

A corpus may have planted canaries (``canary.py``): records of the operator's, which are no leaves
of the credential's tree. They follow from the specification that stands beside them. Their rows
come behind the corpus's own: ``repeats`` rows of the first canary, then of the second. Each row is
one canary with its separator, so a canary is never cut and never twice in a row. They are numbered
behind the corpus's records. None is ever in the reserve.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from govray.errors import Malformed
from govray.governance.formats.bounds import Hex256, Natural, Positive
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.policy import record_commitment
from govray.governance.record.canary import Canaries

ShardName = Annotated[str, Field(pattern=r"^class=[0-9a-f]{12}/[A-Za-z0-9._-]+\.parquet$")]
ReserveShare = Annotated[float, Field(ge=0, lt=1)]
Split = Literal["train", "reserve", "empty"]
Rows: TypeAlias = npt.NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 20


class ManifestRecord(NamedTuple):
    """One record in Merkle order, by its entry in hex; in JSON an array of three."""

    entry: Hex256
    tokens: Natural
    split: Split


class RowGroup(Document):
    """``digest`` is the SHA-256 of the decoded rows: per row the token count, then the tokens,
    all little-endian uint32."""

    rows: Positive
    digest: Digest


class ReserveShard(Document):
    """The packed reserve records of a part; fields as those of a ``Part``."""

    tokens: Positive
    rows: Positive
    file: ShardName
    row_groups: tuple[RowGroup, ...]


class Part(Document):
    """One records file and the shard it became.

    ``records`` is the half-open range into the corpus's records. ``tokens`` is the length of the
    part stream, with separators and a dropped last token. ``file`` is the shard below the prepared
    folder. ``reserve`` is absent where the part's reserve records make no row, and in folders that
    were prepared before there was one.
    """

    source: Annotated[str, Field(pattern=r"^records-[0-9]{5,}\.parquet$")]
    records: tuple[Natural, Natural]
    tokens: Natural
    rows: Natural
    file: ShardName
    row_groups: tuple[RowGroup, ...]
    reserve: ReserveShard | None = None


class Planted(Document):
    """The canaries of a corpus: what they follow from, their records by index, their shard."""

    canaries: Canaries
    records: tuple[ManifestRecord, ...]
    file: ShardName
    row_groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        return len(self.records) * self.canaries.repeats


class PreparedCorpus(Document):
    """One admitted corpus. ``credential`` is its credential's digest, ``commitment`` what the
    credential states of its records' leaves."""

    corpus: Name
    credential: Digest
    class_digest: Digest
    commitment: Digest | None = None
    records: tuple[ManifestRecord, ...]
    parts: tuple[Part, ...]
    planted: Planted | None = None


class TokenizerIdentity(Document):
    """``vocabulary`` counts the token ids; ``separator`` is the id that follows every record."""

    name: str
    digest: Digest
    vocabulary: Positive
    separator: Natural


@lru_cache(maxsize=8)
def _salted(salt: str) -> tuple[Any, Any]:
    """HMAC's two hashes with the salt in them (RFC 2104), whose copies go on with a record.

    To begin with the salt for each of many records takes longer. No salt exceeds SHA-256's block.
    """
    block = bytes.fromhex(salt).ljust(64, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    return hashlib.sha256(inner), hashlib.sha256(outer)


class Reserve(Document):
    """The share of records never trained on, and the salt that chooses them (hex)."""

    share: ReserveShare
    salt: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){16,64}$")]

    @cached_property
    def _bound(self) -> bytes:
        # Fraction is exact; the bound rounds up, since x < b for an integer x iff x < ceil(b).
        return int(-(-Fraction(self.share) * (1 << 256) // 1)).to_bytes(32, "big")

    def holds(self, record: bytes) -> bool:
        """Whether the record with this 32-byte entry is held in reserve."""
        inner, outer = (each.copy() for each in _salted(self.salt))
        inner.update(record)
        outer.update(inner.digest())
        return bool(outer.digest() < self._bound)


class Quarantined(Document):
    """Records that were refused, with the rule (or check) that refused them and why."""

    corpus: Name
    rule: str
    reason: str
    records: Natural


class RecordSpan(NamedTuple):
    """A record's share of a row: its index in the corpus and the half-open range of its tokens."""

    record: int
    start: int
    stop: int


class Manifest(Document):
    """What was admitted, how it was packed and what was refused.

    Construction checks that the manifest agrees with itself; row counts and splits that do not
    follow from the records are refused.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/prepare-manifest/v1"

    tokenizer: TokenizerIdentity
    context: Positive
    reserve: Reserve
    corpora: tuple[PreparedCorpus, ...]
    quarantine: tuple[Quarantined, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [c.corpus for c in self.corpora]
        if names != sorted(set(names)):
            raise ValueError("corpora are not sorted by name or not distinct")
        refused = [(q.corpus, q.rule, q.reason) for q in self.quarantine]
        if refused != sorted(set(refused)):
            raise ValueError("quarantine entries are not sorted or not distinct")
        if self.tokenizer.separator >= self.tokenizer.vocabulary:
            raise ValueError("the separator is outside the vocabulary")
        parts = [part for c in self.corpora for part in c.parts]
        files = [part.file for part in parts] + [p.reserve.file for p in parts if p.reserve]
        files += [c.planted.file for c in self.corpora if c.planted]
        if len(files) != len(set(files)):
            raise ValueError("two parts share one shard")
        for corpus in self.corpora:
            self._check_splits(corpus)
            self._check_parts(corpus)
            if corpus.planted:
                self._check_planted(corpus.corpus, corpus.planted)
        return self

    def _check_splits(self, corpus: PreparedCorpus) -> None:
        for i, record in enumerate(corpus.records):
            split: Split = "empty"
            if record.tokens:
                split = "reserve" if self.reserve.holds(bytes.fromhex(record.entry)) else "train"
            if record.split != split:
                raise ValueError(
                    f"{corpus.corpus}: record {i} is marked {record.split}, its hash says {split}"
                )

    def _check_parts(self, corpus: PreparedCorpus) -> None:
        stop = 0
        for k, part in enumerate(corpus.parts):
            name = f"{corpus.corpus}: part {k}"
            if part.source != f"records-{k:05}.parquet":
                raise ValueError(f"{name} is {part.source}, out of order")
            if part.records[0] != stop or part.records[1] < stop:
                raise ValueError(f"{name} does not start at record {stop}")
            stop = part.records[1]
            records = corpus.records[part.records[0] : stop]
            self._check_shard(name, part, records, "train")
            if part.reserve is not None:
                self._check_shard(f"{name}, reserve,", part.reserve, records, "reserve")
        if stop != len(corpus.records):
            raise ValueError(f"{corpus.corpus}: the parts end at record {stop}")

    def _check_shard(
        self, name: str, shard: Part | ReserveShard, records: Sequence[ManifestRecord], split: Split
    ) -> None:
        row = self.context + 1
        tokens = sum(r.tokens + 1 for r in records if r.split == split)
        if shard.tokens != tokens:
            raise ValueError(f"{name} says {shard.tokens} tokens, its records make {tokens}")
        rows = tokens // row + (tokens % row >= 2)
        if shard.rows != rows:
            raise ValueError(f"{name} says {shard.rows} rows, its tokens make {rows}")
        if sum(group.rows for group in shard.row_groups) != rows:
            raise ValueError(f"{name}: the row groups do not add up to {rows} rows")

    def _check_planted(self, corpus: str, planted: Planted) -> None:
        made = [canary.sha256 for canary in planted.canaries.planted(corpus)]
        if [record.entry for record in planted.records] != made:
            raise ValueError(f"{corpus}: the planted records are not the canaries that are stated")
        if any(r.split != "train" or not 1 <= r.tokens <= self.context for r in planted.records):
            raise ValueError(f"{corpus}: a canary does not train, or does not fit into a row")
        if sum(group.rows for group in planted.row_groups) != planted.rows:
            raise ValueError(f"{corpus}: the row groups of the canaries have other rows")
        records = {record.entry for each in self.corpora for record in each.records}
        if not records.isdisjoint(made):
            raise ValueError(f"{corpus}: a canary is also a record of a corpus")

    @cached_property
    def _layouts(self) -> dict[str, _Layout]:
        return {c.corpus: _Layout(c, self.context + 1, "train") for c in self.corpora}

    @cached_property
    def _reserves(self) -> dict[str, _Layout]:
        return {c.corpus: _Layout(c, self.context + 1, "reserve") for c in self.corpora}

    @cached_property
    def _found(self) -> dict[tuple[str | None, str], list[tuple[str, int]]]:
        """(Corpus, entry) → places; the corpus is None of plain hashes, which all can be asked."""
        found: dict[tuple[str | None, str], list[tuple[str, int]]] = {}
        for c in self.corpora:
            committed = c.corpus if c.commitment else None
            for i, record in enumerate(c.records):
                found.setdefault((committed, record.entry), []).append((c.corpus, i))
            for i, canary in enumerate(c.planted.records if c.planted else (), len(c.records)):
                found.setdefault((None, canary.entry), []).append((c.corpus, i))
        return found

    def corpus(self, name: str) -> PreparedCorpus:
        """Raises ``Malformed`` if the manifest has no such corpus."""
        return self._layout(name).corpus

    def _layout(self, name: str, split: Split = "train") -> _Layout:
        try:
            return (self._reserves if split == "reserve" else self._layouts)[name]
        except KeyError:
            raise Malformed("no such corpus in the prepare manifest", where=name) from None

    def merkle_root(self, corpus: str) -> str:
        """The RFC 9162 root over the corpus's records, ``sha256:<hex>``."""
        prepared = self.corpus(corpus)
        entries = [bytes.fromhex(r.entry) for r in prepared.records]
        return record_commitment.root(entries, committed=prepared.commitment is not None)

    def train_rows(self, corpus: str) -> int:
        """Packed training rows of the corpus, those of its canaries included."""
        return self._layout(corpus).rows

    def own_rows(self, corpus: str) -> int:
        """Packed training rows of the corpus's own records: they come before the canaries'."""
        return self._layout(corpus).own_rows

    def record(self, corpus: str, index: int) -> ManifestRecord:
        """A record of a corpus; behind its own ones, its canaries.

        Raises:
            ValueError: There is no such record.
        """
        prepared = self.corpus(corpus)
        if 0 <= index < len(prepared.records):
            return prepared.records[index]
        planted = prepared.planted.records if prepared.planted else ()
        if not 0 <= index - len(prepared.records) < len(planted):
            raise ValueError(f"record {index} of {corpus} does not exist")
        return planted[index - len(prepared.records)]

    def reserve_rows(self, corpus: str) -> int:
        """Packed rows of the corpus's reserve."""
        return self._layout(corpus, "reserve").rows

    def row_length(self, corpus: str, row: int) -> int:
        """Tokens in a row: T+1, or fewer in the last row of a part and in those of canaries."""
        return self._layout(corpus).row_length(row)

    def targets(self, corpus: str, row: int) -> int:
        """Loss targets in a row: its tokens less one."""
        return self.row_length(corpus, row) - 1

    def targets_of(self, corpus: str, rows: Rows) -> Rows:
        """`targets` of each of many rows, any shape, same shape."""
        return self._layout(corpus).row_lengths(rows) - 1

    def distinct_records(self, corpus: str, rows: Rows) -> int:
        """How many records any of these rows, distinct ones, holds tokens of."""
        return self._layout(corpus).distinct_records(rows)

    def row_records(self, corpus: str, row: int, split: Split = "train") -> tuple[RecordSpan, ...]:
        """The records that a row holds tokens of, in order; of the reserve with that ``split``.

        Ranges are in the record's own tokens, without its separator; a record of which the row
        holds the separator alone is not listed.
        """
        return tuple(self._layout(corpus, split).spans(row))

    def record_rows(self, corpus: str, record: int) -> range:
        """The rows that hold tokens of a record; empty if it does not train."""
        return self._layout(corpus).rows_of(record)

    def find(
        self, sha256: str, secrets: Mapping[str, bytes] | None = None
    ) -> tuple[tuple[str, int], ...]:
        """Every (corpus, record index) of the record with this SHA-256 (hex), sorted.

        ``secrets`` has those of corpora with commitments, by name. In the others with commitments
        only canaries are found.
        """
        found = list(self._found.get((None, sha256), ()))
        for corpus, secret in (secrets or {}).items():
            entry = record_commitment.entry(bytes.fromhex(sha256), secret).hex()
            found += self._found.get((corpus, entry), ())
        return tuple(sorted(found))


class _Layout:
    """Where a corpus's records of one split lie in its rows: sums, searched by bisection.

    ``starts[j]`` is the offset of that split's record j in the concatenation of the part streams,
    and ``bases[k]`` that of part k. ``row_ends[k]`` is the corpus's row index just past part k.
    """

    def __init__(self, corpus: PreparedCorpus, row: int, split: Split) -> None:
        self.corpus = corpus
        self._row = row
        self._records = [i for i, r in enumerate(corpus.records) if r.split == split]
        shards = [p if split == "train" else p.reserve for p in corpus.parts]
        self._rows = [shard.rows if shard else 0 for shard in shards]
        # Of records that make no row nobody asks, but what follows them is counted from there.
        sizes = (
            p.tokens
            if split == "train"
            else sum(r.tokens + 1 for r in corpus.records[slice(*p.records)] if r.split == split)
            for p in corpus.parts
        )
        lengths = (corpus.records[i].tokens + 1 for i in self._records)
        self._starts = list(accumulate(lengths, initial=0))
        self._bases = list(accumulate(sizes, initial=0))
        self._row_ends = list(accumulate(self._rows))
        self._part_ends = [p.records[1] for p in corpus.parts]
        self._planted = corpus.planted if split == "train" else None

    @property
    def own_rows(self) -> int:
        return self._row_ends[-1] if self._row_ends else 0

    @property
    def rows(self) -> int:
        return self.own_rows + (self._planted.rows if self._planted else 0)

    def row_length(self, row: int) -> int:
        if (canary := self._canary(row)) is not None:
            return canary.stop + 1
        start, stop = self.row_range(row)
        return stop - start

    def row_lengths(self, rows: Rows) -> Rows:
        """`row_length` of each, any shape, same shape."""
        if rows.size and not 0 <= rows.min() <= rows.max() < self.rows:
            raise ValueError(f"a row of {self.corpus.corpus} is outside [0, {self.rows})")
        lengths = np.full(rows.shape, self._row, np.int64)
        short, shorter = self._short
        if short.size:
            nearest = np.minimum(np.searchsorted(short, rows), short.size - 1)
            lengths = np.where(short[nearest] == rows, shorter[nearest], lengths)
        if self._planted is not None:
            tokens = np.array([record.tokens for record in self._planted.records], np.int64)
            planted = rows >= self.own_rows
            canaries = (rows[planted] - self.own_rows) // self._planted.canaries.repeats
            lengths[planted] = tokens[canaries] + 1
        return lengths

    @cached_property
    def _short(self) -> tuple[Rows, Rows]:
        """The own rows that are not full, ascending, and their lengths."""
        lasts = [end - 1 for end, rows in zip(self._row_ends, self._rows, strict=True) if rows]
        short = [(row, length) for row in lasts if (length := self.row_length(row)) < self._row]
        return (
            np.array([row for row, _ in short], np.int64),
            np.array([length for _, length in short], np.int64),
        )

    def distinct_records(self, rows: Rows) -> int:
        """How many records these rows, distinct ones, hold tokens of; canaries included."""
        planted = rows[rows >= self.own_rows] - self.own_rows
        repeats = self._planted.canaries.repeats if self._planted else 1
        # Nobody has as many tokens as need Python's integers, but a manifest may state them.
        integer: type = np.int64 if self._bases[-1] < 1 << 62 else object
        starts: npt.NDArray[Any] = np.array(self._starts, integer)
        bases: npt.NDArray[Any] = np.array(self._bases, integer)
        ends = np.array(self._row_ends, np.int64)
        firsts = ends - np.array(self._rows, np.int64)
        marks = np.zeros(len(starts), np.int64)
        own = rows[rows < self.own_rows]
        for at in range(0, own.size, _ROWS_AT_ONCE):
            some = own[at : at + _ROWS_AT_ONCE]
            parts = np.searchsorted(ends, some, side="right")
            begin = bases[parts] + (some - firsts[parts]).astype(integer) * self._row
            end = np.minimum(begin + self._row, bases[parts + 1])
            first = np.searchsorted(starts, begin, side="right") - 1
            first += starts[first + 1] - 1 == begin  # it begins with that record's separator
            marks += np.bincount(first, minlength=marks.size)
            marks -= np.bincount(np.searchsorted(starts, end), minlength=marks.size)
        return np.unique(planted // repeats).size + int(np.count_nonzero(np.cumsum(marks)))

    def _canary(self, row: int) -> RecordSpan | None:
        """The canary that a row consists of, if it is one of theirs."""
        if self._planted is None or not self.own_rows <= row < self.rows:
            return None
        index = (row - self.own_rows) // self._planted.canaries.repeats
        return RecordSpan(len(self.corpus.records) + index, 0, self._planted.records[index].tokens)

    def row_range(self, row: int) -> tuple[int, int]:
        """The half-open range of one of the corpus's own rows in the concatenated part streams."""
        if not 0 <= row < self.own_rows:
            raise ValueError(f"row {row} of {self.corpus.corpus} is outside [0, {self.rows})")
        part = bisect_right(self._row_ends, row)
        first = self._row_ends[part] - self._rows[part]
        start = self._bases[part] + (row - first) * self._row
        return start, min(start + self._row, self._bases[part + 1])

    def spans(self, row: int) -> Iterator[RecordSpan]:
        if (canary := self._canary(row)) is not None:
            yield canary
            return
        start, stop = self.row_range(row)
        for j in range(bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)):
            record = self._records[j]
            first = max(start - self._starts[j], 0)
            last = min(stop - self._starts[j], self.corpus.records[record].tokens)
            if first < last:
                yield RecordSpan(record, first, last)

    def rows_of(self, record: int) -> range:
        own = len(self.corpus.records)
        planted = self._planted
        if planted and own <= record < own + len(planted.records):
            first = self.own_rows + (record - own) * planted.canaries.repeats
            return range(first, first + planted.canaries.repeats)
        if not 0 <= record < own:
            raise ValueError(f"record {record} of {self.corpus.corpus} does not exist")
        if self.corpus.records[record].split != "train":
            return range(0)
        start = self._starts[bisect_left(self._records, record)]
        stop = start + self.corpus.records[record].tokens
        part = bisect_right(self._part_ends, record)
        rows = self._rows[part]
        first = self._row_ends[part] - rows
        offset = start - self._bases[part]
        # A dropped last token lies past the last row.
        return range(
            first + min(offset // self._row, rows),
            first + min((stop - 1 - self._bases[part]) // self._row + 1, rows),
        )
