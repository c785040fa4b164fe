"""The prepare manifest: which records became which packed rows, and what may train.

It is signed by the operator, pinned by the batch plan's digest and checked when shards are read. So
it binds what the trainer reads to the Merkle roots that the credentials sign. A `BoundManifest`
(v2) states counts, and digests of the files that hold records and row groups. An `InlineManifest`
(v1) lists both itself: each record by its entry (``policy/record_commitment.py``) and its tokens.
Neither states which tokens a row holds. That is arithmetic: of rows here, of the records in them in
``prepared_records.py``.

Packing

Per corpus and part (one ``records-*.parquet`` file) the **part stream** is the tokens of the part's
training records in order. One separator token follows each record. The stream is cut into rows of
T+1 tokens (T = ``context``) without overlap: row i covers ``[i(T+1), (i+1)(T+1))``. The last row
may be shorter; a last row of one token has no loss target and is dropped. A row of k tokens has k−1
loss targets. Rows count through a corpus's parts in order.

A manifest with a row schema (``formats/row_schema.py``) says what else its rows are. Rows of
``chat`` are packed likewise, but k−1 bounds their loss targets: how many each has stands beside the
records, bound by ``RowTargets``. Of ``tensors`` each record is a row, counted as one token and its
separator under a context of 1.

Reserve

A record is held in reserve by a keyed function of its entry, under the manifest's salt
(``Reserve`` for v1, ``DrawnReserve`` for v2). So equal records of one corpus share their split.
Those of two corpora do so only where neither has commitments. The salt is drawn after the suppliers
have signed, so a supplier cannot choose what is held back. A verifier can recompute the choice. A
record with no tokens is ``empty`` whatever its entry.

A manifest with ``families`` holds records by family: near copies of one text within a corpus. The
entry that decides is that of the family's representative, its last record, which stands beside
each record. So a verifier sees that each split follows. Whether the families are the near copies
can be seen by whoever has the records.

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
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from struct import iter_unpack
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from govray.errors import Malformed
from govray.governance.formats.bounds import Natural, Positive
from govray.governance.formats.document import Digest, Document, Name
from govray.governance.formats.dsse import Envelope
from govray.governance.formats.record_columns import (
    EMPTY,
    RESERVE,
    SPLITS,
    TRAIN,
    ManifestRecord,
    RecordColumns,
    Rows,
)
from govray.governance.formats.row_schema import RowSchema
from govray.governance.formats.sip_hash import sip_hash
from govray.governance.formats.statement import Sealed, claimed_type, read
from govray.governance.record.canary import Canaries
from govray.governance.trust.trust_state import TrustState, Verified

MANIFEST_FILE = "manifest.dsse.json"
"""The signed manifest of a prepared folder."""

ShardName = Annotated[str, Field(pattern=r"^class=[0-9a-f]{12}/[A-Za-z0-9._-]+\.parquet$")]
ReserveShare = Annotated[float, Field(ge=0, lt=1)]
Salt = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){16,64}$")]
Source = Annotated[str, Field(pattern=r"^records-[0-9]{5,}\.parquet$")]
_STATES = ("do not state", "state")
Held: TypeAlias = npt.NDArray[np.bool_]


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

    source: Source
    records: tuple[Natural, Natural]
    tokens: Natural
    rows: Natural
    file: ShardName
    row_groups: tuple[RowGroup, ...]
    reserve: ReserveShard | None = None


class SplitCounts(Document):
    """Records of a part, by split."""

    train: Natural
    reserve: Natural
    empty: Natural


class BoundShard(Document):
    """The packed reserve records of a part; fields as those of a ``BoundPart``."""

    tokens: Positive
    rows: Positive
    file: ShardName
    rows_per_group: Positive
    groups_digest: Digest


class RowTargets(Document):
    """The loss targets of a part's rows, where some tokens are none.

    ``digest`` is the SHA-256 of the rows' counts, each a little-endian uint32. They stand in the
    metadata of the part's records file.
    """

    total: Natural
    digest: Digest

    @classmethod
    def of(cls, targets: Rows) -> RowTargets:
        """Of the counts ``[rows]``, each below 2**32."""
        data = targets.astype("<u4").tobytes()
        return cls(total=int(targets.sum()), digest="sha256:" + hashlib.sha256(data).hexdigest())


class BoundPart(Document):
    """A ``Part`` whose records and row groups stand in files that it binds.

    Row groups hold ``rows_per_group`` rows, the last one the rest. ``groups_digest`` is the SHA-256
    of their digests (as in ``RowGroup``, 32 bytes each) behind each other. The list stands in the
    shard's own metadata. ``records_digest`` is `RecordColumns.digest` of the part's records, which
    stand in ``records_file``. ``reserve`` is absent where no record is in reserve. ``targets`` is
    there for rows of chat alone.
    """

    source: Source
    records: tuple[Natural, Natural]
    splits: SplitCounts
    tokens: Natural
    rows: Natural
    file: ShardName
    rows_per_group: Positive
    groups_digest: Digest
    records_digest: Digest
    reserve: BoundShard | None = None
    targets: RowTargets | None = None

    @property
    def records_file(self) -> str:
        """The part's records, below the prepared folder."""
        return self.file.removesuffix(".parquet") + ".records.parquet"


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


class BoundCorpus(Document):
    """A ``PreparedCorpus`` whose records stand in files."""

    corpus: Name
    credential: Digest
    class_digest: Digest
    commitment: Digest | None = None
    parts: tuple[BoundPart, ...]
    planted: Planted | None = None


AnyPart: TypeAlias = Part | BoundPart
AnyCorpus: TypeAlias = PreparedCorpus | BoundCorpus


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


def _bound(share: float, bits: int) -> int:
    # Fraction is exact; the bound rounds up, since x < b for an integer x iff x < ceil(b).
    return int(-(-Fraction(share) * (1 << bits) // 1))


class ReserveDraw(Document):
    """The share of records never trained on, and the salt that chooses them (hex)."""

    share: ReserveShare
    salt: Salt

    def holds(self, record: bytes) -> bool:
        """Whether the record with this 32-byte entry is held in reserve."""
        return bool(self.held(np.frombuffer(record, np.uint8).reshape(1, 32))[0])

    def held(self, entries: npt.NDArray[np.uint8]) -> Held:
        """`holds` of each of ``entries`` ``[n, 32]``."""
        return self._chosen(entries) if self.share else np.zeros(len(entries), np.bool_)

    def _chosen(self, entries: npt.NDArray[np.uint8]) -> Held:
        """`held` for a share above 0."""
        raise NotImplementedError


class Reserve(ReserveDraw):
    """The draw of v1.

    A record is held when ``HMAC-SHA256(salt, entry) < share · 2**256``, both big-endian integers.
    """

    def _chosen(self, entries: npt.NDArray[np.uint8]) -> Held:
        inner, outer = _salted(self.salt)
        bound = _bound(self.share, 256).to_bytes(32, "big")
        found = []
        for (entry,) in iter_unpack("32s", entries.tobytes()):
            first, second = inner.copy(), outer.copy()
            first.update(entry)
            second.update(first.digest())
            found.append(second.digest() < bound)
        return np.array(found, np.bool_)


class DrawnReserve(ReserveDraw):
    """The draw of v2, by SipHash-2-4: an eighth of the time, over arrays.

    The key is the first 16 bytes of SHA-256(salt). A record is held when ``SipHash(key, entry) <
    share · 2**64``. The salt is drawn after the suppliers signed. So that nobody can aim at a split
    takes a pseudorandom function under an unknown key, which SipHash is meant to be, and no more.
    """

    def _chosen(self, entries: npt.NDArray[np.uint8]) -> Held:
        key = hashlib.sha256(bytes.fromhex(self.salt)).digest()[:16]
        words = np.ascontiguousarray(entries).view("<u8")
        return sip_hash(key, words) < np.uint64(_bound(self.share, 64))


AnyReserve: TypeAlias = Reserve | DrawnReserve


class NearFamilies(Document):
    """How near copies were found (``data/families/near_families.py``).

    ``values`` MinHash values of 16 bits stand for a record's word sequences of length ``shingle``,
    in ``bands``, of the generator ``method`` under ``seed``. Two records that agree in a band are
    near if at least the share ``similar`` of their values is equal. Records of fewer than
    ``least_shingles`` are near to none.
    """

    method: str
    shingle: Positive
    values: Positive
    bands: Positive
    seed: Natural
    least_shingles: Positive
    similar: Annotated[float, Field(gt=0, le=1)]


class Quarantined(Document):
    """Records that were refused, with the rule (or check) that refused them and why."""

    corpus: Name
    rule: str
    reason: str
    records: Natural


class Manifest(Document):
    """What was admitted, how it was packed and what was refused, in either form.

    Construction checks that the manifest agrees with itself; what does not follow from the rest is
    refused. Rows are counted from parts alone.
    """

    tokenizer: TokenizerIdentity
    context: Positive
    reserve: AnyReserve
    corpora: tuple[AnyCorpus, ...]
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
        if self.row_schema is not None:
            self._check_schema(self.row_schema)
        parts = [part for c in self.corpora for part in c.parts]
        files = [part.file for part in parts] + [p.reserve.file for p in parts if p.reserve]
        files += [c.planted.file for c in self.corpora if c.planted]
        files += [part.records_file for part in parts if isinstance(part, BoundPart)]
        if len(files) != len(set(files)):
            raise ValueError("two parts share one shard")
        inline = self._inline()
        for corpus in self.corpora:
            self._check_parts(corpus, inline.get(corpus.corpus))
        for corpus in self.corpora:
            if corpus.planted:
                self._check_planted(corpus.corpus, corpus.planted, inline.values())
        return self

    def _check_schema(self, rows: RowSchema) -> None:
        if rows.kind == "tensors" and self.context != 1:
            raise ValueError("a row of tensors has one loss target, so the context is 1")
        for corpus in self.corpora:
            if corpus.planted:
                raise ValueError(f"{corpus.corpus}: canaries are planted in packed text alone")
            parts: Sequence[AnyPart] = corpus.parts
            for k, part in enumerate(parts):
                trained = part.splits.train if isinstance(part, BoundPart) else 0
                if rows.kind == "tensors" and part.tokens != 2 * trained:
                    raise ValueError(f"{corpus.corpus}: part {k}: each record is a row of its own")

    def _inline(self) -> dict[str, RecordColumns]:
        """Corpus → its records, where they stand in the document."""
        return {}

    @property
    def row_schema(self) -> RowSchema | None:
        """What rows hold; None for packed text."""
        return None

    @property
    def by_family(self) -> bool:
        """Whether near copies lie on one side of the reserve."""
        return False

    @property
    def masked(self) -> bool:
        """Whether some tokens are no loss targets, so that rows' targets have to be looked up."""
        return self.row_schema is not None and self.row_schema.kind == "chat"

    @property
    def width(self) -> int:
        """Words of a full row as shards store it: tokens, or tensors four bytes at a time."""
        return (self.row_schema.words if self.row_schema else 0) or self.context + 1

    def _check_parts(self, corpus: AnyCorpus, inline: RecordColumns | None) -> None:
        if inline is not None:
            check_splits(self, corpus.corpus, 0, inline)
        stop = 0
        parts: Sequence[AnyPart] = corpus.parts
        for k, part in enumerate(parts):
            name = f"{corpus.corpus}: part {k}"
            if part.source != f"records-{k:05}.parquet":
                raise ValueError(f"{name} is {part.source}, out of order")
            if part.records[0] != stop or part.records[1] < stop:
                raise ValueError(f"{name} does not start at record {stop}")
            stop = part.records[1]
            if inline is not None:
                check_streams(corpus.corpus, k, part, inline.slice(*part.records))
            self._check_rows(name, part)
            if part.reserve is not None:
                self._check_rows(f"{name}, reserve,", part.reserve)
            if isinstance(part, BoundPart):
                _check_counts(name, part)
                self._check_targets(name, part)
        if inline is not None and stop != len(inline):
            raise ValueError(f"{corpus.corpus}: the parts end at record {stop}")

    def _check_targets(self, name: str, part: BoundPart) -> None:
        if (part.targets is not None) != self.masked:
            raise ValueError(f"{name}: only rows of chat state their loss targets, and each part's")
        if part.targets is not None and part.targets.total > part.rows * self.context:
            raise ValueError(f"{name} says more loss targets than its rows have tokens for")

    def _check_rows(self, name: str, shard: AnyPart | ReserveShard | BoundShard) -> None:
        row = self.context + 1
        rows = shard.tokens // row + (shard.tokens % row >= 2)
        if shard.rows != rows:
            raise ValueError(f"{name} says {shard.rows} rows, its tokens make {rows}")
        if isinstance(shard, Part | ReserveShard) and (
            sum(group.rows for group in shard.row_groups) != rows
        ):
            raise ValueError(f"{name}: the row groups do not add up to {rows} rows")

    def _check_planted(
        self, corpus: str, planted: Planted, inline: Iterable[RecordColumns]
    ) -> None:
        made = [canary.sha256 for canary in planted.canaries.planted(corpus)]
        if [record.entry for record in planted.records] != made:
            raise ValueError(f"{corpus}: the planted records are not the canaries that are stated")
        if any(r.split != "train" or not 1 <= r.tokens <= self.context for r in planted.records):
            raise ValueError(f"{corpus}: a canary does not train, or does not fit into a row")
        if sum(group.rows for group in planted.row_groups) != planted.rows:
            raise ValueError(f"{corpus}: the row groups of the canaries have other rows")
        for columns in inline:
            check_canaries(self, columns)

    @cached_property
    def _rows(self) -> dict[str, _CorpusRows]:
        return {c.corpus: _CorpusRows(c, self.context + 1) for c in self.corpora}

    def _rows_of(self, corpus: str) -> _CorpusRows:
        try:
            return self._rows[corpus]
        except KeyError:
            raise Malformed("no such corpus in the prepare manifest", where=corpus) from None

    def corpus(self, name: str) -> AnyCorpus:
        """Raises ``Malformed`` if the manifest has no such corpus."""
        return self._rows_of(name).corpus

    def records(self, corpus: str) -> int:
        """How many records of its own the corpus has: all but canaries."""
        parts = self.corpus(corpus).parts
        return parts[-1].records[1] if parts else 0

    def train_rows(self, corpus: str) -> int:
        """Packed training rows of the corpus, those of its canaries included."""
        return self._rows_of(corpus).rows

    def own_rows(self, corpus: str) -> int:
        """Packed training rows of the corpus's own records: they come before the canaries'."""
        return self._rows_of(corpus).own_rows

    def reserve_rows(self, corpus: str) -> int:
        """Packed rows of the corpus's reserve."""
        return sum(part.reserve.rows for part in self.corpus(corpus).parts if part.reserve)

    def split_counts(self, corpus: str) -> tuple[int, int]:
        """How many of its own records the corpus trains on, and how many its reserve holds."""
        counts = [part.splits for part in self.corpus(corpus).parts if isinstance(part, BoundPart)]
        return sum(each.train for each in counts), sum(each.reserve for each in counts)

    def row_length(self, corpus: str, row: int) -> int:
        """Tokens in a row: T+1, or fewer in the last row of a part and in those of canaries."""
        return int(self._rows_of(corpus).lengths(np.array(row, np.int64)))

    def targets(self, corpus: str, row: int) -> int:
        """Loss targets in a row: its tokens less one. An upper bound if the rows are ``masked``."""
        return self.row_length(corpus, row) - 1

    def targets_of(self, corpus: str, rows: Rows) -> Rows:
        """`targets` of each of many rows, any shape, same shape."""
        return self._rows_of(corpus).lengths(rows) - 1

    def stated_targets(self, corpus: str) -> int:
        """Loss targets of all training rows, where rows are masked and parts state them."""
        parts = self.corpus(corpus).parts
        stated = [part.targets for part in parts if isinstance(part, BoundPart)]
        return sum(each.total for each in stated if each)

    def short_rows(self, corpus: str) -> tuple[Rows, Rows]:
        """The corpus's own rows that are not full, ascending, and the tokens of each."""
        return self._rows_of(corpus).short


class InlineManifest(Manifest):
    """The form in which every record stands in the document (v1)."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/prepare-manifest/v1"

    reserve: Reserve
    corpora: tuple[PreparedCorpus, ...]

    def _inline(self) -> dict[str, RecordColumns]:
        return self.columns()

    def split_counts(self, corpus: str) -> tuple[int, int]:
        """How many of its own records the corpus trains on, and how many its reserve holds."""
        prepared = self.corpus(corpus)
        assert isinstance(prepared, PreparedCorpus)
        counts = Counter(each.split for each in prepared.records)
        return counts["train"], counts["reserve"]

    def columns(self) -> dict[str, RecordColumns]:
        """Corpus → its records. Made anew by each call."""
        return {each.corpus: RecordColumns.of(each.records) for each in self.corpora}


class BoundManifest(Manifest):
    """The form in which records stand in files that the document binds (v2)."""

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/prepare-manifest/v2"

    reserve: DrawnReserve
    corpora: tuple[BoundCorpus, ...]
    rows: RowSchema | None = None
    families: NearFamilies | None = None

    @property
    def row_schema(self) -> RowSchema | None:
        return self.rows

    @property
    def by_family(self) -> bool:
        return self.families is not None


def check_splits(manifest: Manifest, corpus: str, first: int, columns: RecordColumns) -> None:
    """Return if the splits of consecutive records follow from their entries, or their families'.

    Args:
        manifest: Whose reserve it is.
        corpus: Names them in errors.
        first: The first one's place in the corpus.
        columns: The records.

    Raises:
        ValueError: Names the first that does not.
    """
    if manifest.by_family != (columns.families is not None):
        raise ValueError(f"{corpus}: the records {_STATES[not manifest.by_family]} families")
    found = np.where(manifest.reserve.held(columns.drawn_by), RESERVE, TRAIN)
    found = np.where(columns.tokens == 0, EMPTY, found).astype(np.uint8)
    wrong = np.flatnonzero(found != columns.splits)
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(
            f"{corpus}: record {first + i} is marked {SPLITS[columns.splits[i]]}, "
            f"its {'family' if manifest.by_family else 'hash'} says {SPLITS[found[i]]}"
        )


class Representatives:
    """Compares the families of a corpus, part after part: each representative is one of its records
    and stands for itself.

    A representative is the last of its family. So it suffices to remember those that are still to
    come, by the first eight bytes of their entries.

    Args:
        corpus: Names it in errors.
    """

    def __init__(self, corpus: str) -> None:
        self._corpus = corpus
        self._awaited = np.empty(0, np.uint64)

    def add(self, columns: RecordColumns) -> None:
        """Compare with the next part."""
        if columns.families is None:
            return
        represented = columns.represented
        named, own = columns.families[represented], columns.entries[~represented]
        self._awaited = np.setdiff1d(
            np.union1d(self._awaited, _first_word(named)), _first_word(own)
        )

    def end(self) -> None:
        """Return if none is missing.

        Raises:
            ValueError: A family's representative is not among the records, or in another family.
        """
        if self._awaited.size:
            raise ValueError(
                f"{self._corpus}: {self._awaited.size} families are named after a record that is "
                "none of theirs"
            )


def _first_word(entries: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(entries).view(np.uint64).reshape(-1, 4)[:, 0]


def check_streams(corpus: str, number: int, part: AnyPart, columns: RecordColumns) -> None:
    """Return if a part's tokens are those of its records.

    Raises:
        ValueError: They are not.
    """
    name = f"{corpus}: part {number}"
    held = [(name, TRAIN, part.tokens)]
    if part.reserve is not None:
        held.append((f"{name}, reserve,", RESERVE, part.reserve.tokens))
    for place, split, stated in held:
        tokens = columns.stream_tokens(split)
        if stated != tokens:
            raise ValueError(f"{place} says {stated} tokens, its records make {tokens}")
    if isinstance(part, BoundPart):
        stated_counts = (part.splits.train, part.splits.reserve, part.splits.empty)
        if stated_counts != (counts := columns.counts()):
            raise ValueError(
                f"{name} says {stated_counts} records to train, in reserve and empty, "
                f"its records are {counts}"
            )


def check_row_targets(corpus: str, number: int, manifest: Manifest, columns: RecordColumns) -> None:
    """Return if the loss targets of a part's rows are such as these rows can have.

    Args:
        corpus: Names the part in errors.
        number: The part's.
        manifest: As verified.
        columns: What the part's file has.

    Raises:
        ValueError: They are not.
    """
    parts = manifest.corpus(corpus).parts
    part = parts[number]
    if columns.row_targets is None or not part.rows:
        return
    last = sum(each.rows for each in parts[: number + 1]) - 1
    most = np.full(part.rows, manifest.context, np.int64)
    most[-1] = manifest.targets(corpus, last)
    if (columns.row_targets > most).any():
        raise ValueError(f"{corpus}: part {number} has a row with more loss targets than tokens")


def check_canaries(manifest: Manifest, columns: RecordColumns) -> None:
    """Return if none of these records, of any corpus, is a canary.

    Raises:
        ValueError: Names the corpus whose canary one is.
    """
    for corpus in manifest.corpora:
        planted = corpus.planted.records if corpus.planted else ()
        if columns.any_of(bytes.fromhex(record.entry) for record in planted):
            raise ValueError(f"{corpus.corpus}: a canary is also a record of a corpus")


def _check_counts(name: str, part: BoundPart) -> None:
    """A part's counts can be of one list of records: each that is packed has a token or more."""
    splits = part.splits
    if splits.train + splits.reserve + splits.empty != part.records[1] - part.records[0]:
        raise ValueError(f"{name}: the splits do not add up to its records")
    held = part.reserve.tokens if part.reserve else 0
    for what, records, tokens in (
        ("to train", splits.train, part.tokens),
        ("in reserve", splits.reserve, held),
    ):
        if tokens < 2 * records or (tokens and not records):
            raise ValueError(f"{name} says {tokens} tokens of {records} records {what}")


class _CorpusRows:
    """The rows of a corpus: ``ends[k]`` is the row just past part k."""

    def __init__(self, corpus: AnyCorpus, row: int) -> None:
        self.corpus = corpus
        self._row = row
        self.ends = list(accumulate(part.rows for part in corpus.parts))
        self.own_rows = self.ends[-1] if self.ends else 0
        self.rows = self.own_rows + (corpus.planted.rows if corpus.planted else 0)

    def lengths(self, rows: Rows) -> Rows:
        """Tokens of each of many rows, any shape, same shape."""
        if rows.size and not 0 <= rows.min() <= rows.max() < self.rows:
            raise ValueError(f"a row of {self.corpus.corpus} is outside [0, {self.rows})")
        lengths = np.full(rows.shape, self._row, np.int64)
        short, shorter = self.short
        if short.size:
            nearest = np.minimum(np.searchsorted(short, rows), short.size - 1)
            lengths = np.where(short[nearest] == rows, shorter[nearest], lengths)
        if (planted := self.corpus.planted) is not None:
            tokens = np.array([record.tokens for record in planted.records], np.int64)
            behind = rows >= self.own_rows
            canaries = (rows[behind] - self.own_rows) // planted.canaries.repeats
            lengths[behind] = tokens[canaries] + 1
        return lengths

    @cached_property
    def short(self) -> tuple[Rows, Rows]:
        """The own rows that are not full, ascending, and their lengths."""
        parts: Sequence[AnyPart] = self.corpus.parts
        found = [
            (end - 1, length)
            for end, part in zip(self.ends, parts, strict=True)
            if part.rows and (length := part.tokens - (part.rows - 1) * self._row) < self._row
        ]
        return (
            np.array([row for row, _ in found], np.int64),
            np.array([length for _, length in found], np.int64),
        )


def _form(envelope: Envelope) -> type[Manifest]:
    """The form that an envelope says it holds; what it holds is refused if it is another."""
    inline = claimed_type(envelope) == InlineManifest.PREDICATE_TYPE
    return InlineManifest if inline else BoundManifest


def read_manifest(envelope: Envelope, *, where: str) -> Sealed[Manifest]:
    """The manifest in an envelope, whose signatures are not looked at.

    Raises:
        Malformed: As `statement.read`.
    """
    return read(_form(envelope), envelope, where=where)


def verify_manifest(
    trust: TrustState, data: bytes | Envelope, *, at: datetime, where: str = "prepare manifest"
) -> Verified[Manifest]:
    """The manifest in an envelope that an operator signed.

    Raises:
        Malformed, Untrusted: As `TrustState.verify`.
    """
    envelope = data if isinstance(data, Envelope) else Envelope.parse(data, where=where)
    return trust.verify(_form(envelope), envelope, role="operator", at=at, where=where)
