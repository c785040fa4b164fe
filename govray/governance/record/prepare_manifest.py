"""The prepare manifest: which records became which packed rows, and what may train.

It is signed by the operator, pinned by the batch plan's digest and checked when shards are read. So
it binds what the trainer reads to the Merkle roots that the credentials sign. It states counts, and
digests of the files that hold records and row groups. So its size grows with parts, not records.
It does not state which tokens a row holds. That is arithmetic: of rows here, of the records in them
in ``prepared_records.py``.

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

A record is held in reserve by a keyed function of its entry (``policy/record_commitment.py``),
under the manifest's salt (`Reserve`). So equal records of one corpus share their split; without
families those of two corpora are chosen apart. A verifier can recompute the choice. A record with
no tokens is ``empty`` whatever its entry.

The salt is younger than the suppliers' signatures, so a supplier cannot choose what is held back.
Where the trust root names a beacon, it follows from a pulse (``trust/beacon.py``), and the preparer
cannot choose either. Without one preparation draws it, and could draw again.

A manifest with ``families`` holds records by family: near copies of one text, in whatever corpus
they lie. The entry that decides is that of the family's representative, its last record, which
is named beside each record. So a verifier sees that each split follows. In each corpus the last
record of a family stands for it, which is marked too. Whether the families are the near copies can
be seen by whoever has the records.

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
from collections.abc import Iterable
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Annotated, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from govray.errors import Malformed, Refused
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
from govray.governance.formats.statement import Sealed, read
from govray.governance.policy.credential import Credential
from govray.governance.record.canary import Canaries
from govray.governance.trust.beacon import Beacon, UsedPulse
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


def rows_of(tokens: int, context: int) -> int:
    """The rows that a stream of so many tokens is cut into."""
    return tokens // (context + 1) + (tokens % (context + 1) >= 2)


def shard_name(credential: Credential, part: int) -> str:
    """The shard of a corpus's part, below the prepared folder: one folder for each class."""
    digest = credential.credential_class.digest.removeprefix("sha256:")
    return f"class={digest[:12]}/{credential.corpus}-{part:05}.parquet"


def reserve_file(file: str) -> str:
    """The shard of a part's reserve, beside the part's own."""
    return file.removesuffix(".parquet") + ".reserve.parquet"


class SplitCounts(Document):
    """Records of a part, by split."""

    train: Natural
    reserve: Natural
    empty: Natural


class ReserveShard(Document):
    """The packed reserve records of a part; fields as those of a ``Part``."""

    tokens: Positive
    rows: Positive
    file: ShardName
    rows_per_group: Positive
    groups_digest: Digest


class RowTargets(Document):
    """The loss targets of a part's rows, where some tokens are no loss targets.

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


class Part(Document):
    """One records file of a corpus and the shard it became; it binds their contents.

    ``records`` is the half-open range into the corpus's records. ``tokens`` is the length of the
    part stream, with separators and a dropped last token. ``file`` is the shard below the prepared
    folder.

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
    reserve: ReserveShard | None = None
    targets: RowTargets | None = None

    @classmethod
    def of(
        cls,
        columns: RecordColumns,
        *,
        source: str,
        file: str,
        context: int,
        rows_per_group: int,
        groups_digest: str,
        reserve_groups_digest: str,
    ) -> Part:
        """The part that these records make, counted from 0.

        Args:
            columns: The records, split; with ``row_targets`` where rows are masked.
            source: The records file.
            file: The shard below the prepared folder.
            context: Loss targets of a full row.
            rows_per_group: Of both shards.
            groups_digest: Of the shard's row groups.
            reserve_groups_digest: Of those of the reserve's shard, if there is one.
        """
        train, held, empty = columns.counts()
        tokens, kept = columns.stream_tokens(TRAIN), columns.stream_tokens(RESERVE)
        reserve = (
            ReserveShard(
                tokens=kept,
                rows=rows_of(kept, context),
                file=reserve_file(file),
                rows_per_group=rows_per_group,
                groups_digest=reserve_groups_digest,
            )
            if held
            else None
        )
        return cls(
            source=source,
            records=(0, len(columns)),
            splits=SplitCounts(train=train, reserve=held, empty=empty),
            tokens=tokens,
            rows=rows_of(tokens, context),
            file=file,
            rows_per_group=rows_per_group,
            groups_digest=groups_digest,
            records_digest=columns.digest,
            reserve=reserve,
            targets=None if columns.row_targets is None else RowTargets.of(columns.row_targets),
        )

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
    commitment: Digest
    parts: tuple[Part, ...]
    planted: Planted | None = None

    @classmethod
    def of(cls, credential: Verified[Credential], parts: Iterable[Part]) -> PreparedCorpus:
        """The corpus of a credential, of parts whose records each count from 0.

        Its records are not yet compared with the credential.
        """
        document = credential.document
        numbered: list[Part] = []
        stop = 0
        for part in parts:
            start, stop = stop, stop + part.records[1]
            numbered.append(part.model_copy(update={"records": (start, stop)}))
        return cls(
            corpus=document.corpus,
            credential=credential.digest,
            class_digest=document.credential_class.digest,
            commitment=document.records.commitment,
            parts=tuple(numbered),
        )


class TokenizerIdentity(Document):
    """``vocabulary`` counts the token ids; ``separator`` is the id that follows every record."""

    name: str
    digest: Digest
    vocabulary: Positive
    separator: Natural


def _bound(share: float, bits: int) -> int:
    # Fraction is exact; the bound rounds up, since x < b for an integer x iff x < ceil(b).
    return int(-(-Fraction(share) * (1 << bits) // 1))


class Reserve(Document):
    """The share of records never trained on, and the salt that chooses them (hex).

    The key is the first 16 bytes of SHA-256(salt). A record is held when ``SipHash-2-4(key, entry)
    < share · 2**64``. The salt is drawn after the suppliers signed. So that nobody can aim at a
    split takes a pseudorandom function under an unknown key, which SipHash is meant to be, and no
    more. HMAC would take eight times as long.

    ``pulse`` is what the salt follows from; preparation drew it if that is absent.
    """

    share: ReserveShare
    salt: Salt
    pulse: UsedPulse | None = None

    @model_validator(mode="after")
    def _follows(self) -> Self:
        if self.pulse and self.salt != self.pulse.salt:
            raise ValueError(f"the salt does not follow from {self.pulse}")
        return self

    @property
    def drawn(self) -> str:
        """How the salt came about, in words."""
        return f"by {self.pulse}" if self.pulse else "drawn by preparation"

    def check_drawn(
        self, beacon: Beacon | None, credentials: Iterable[Credential], *, at: datetime
    ) -> None:
        """Return if the salt came about as the trust root asks.

        Args:
            beacon: The trust root's.
            credentials: Of the corpora that the manifest admits.
            at: When it was used: the start of the run, or a time before.

        Raises:
            Refused: Preparation drew it though there is a beacon, or a pulse is not the one.
        """
        if self.pulse is None:
            if beacon is not None and self.share:
                raise Refused(
                    f"preparation drew the reserve's salt, and the trust root names the beacon "
                    f"{beacon.name}",
                    where="reserve",
                    do="Prepare again with the beacon's pulse: govray prepare --pulse FILE",
                )
            return
        if beacon is None:
            raise Refused(
                f"the reserve follows {self.pulse}, and the trust root names no beacon",
                where="reserve",
                do="Use the trust root that names it",
            )
        issued = {each.corpus: each.issued for each in credentials}
        beacon.check(self.pulse, issued, at=at, where="reserve")

    def holds(self, record: bytes) -> bool:
        """Whether the record with this 32-byte entry is held in reserve."""
        return bool(self.held(np.frombuffer(record, np.uint8).reshape(1, 32))[0])

    def held(self, entries: npt.NDArray[np.uint8]) -> Held:
        """`holds` of each of ``entries`` ``[n, 32]``."""
        if not self.share:
            return np.zeros(len(entries), np.bool_)
        key = hashlib.sha256(bytes.fromhex(self.salt)).digest()[:16]
        words = np.ascontiguousarray(entries).view("<u8")
        return sip_hash(key, words) < np.uint64(_bound(self.share, 64))

    def splits(self, drawn_by: npt.NDArray[np.uint8], tokens: Rows) -> npt.NDArray[np.uint8]:
        """The split codes ``[n]`` of records with these tokens.

        Args:
            drawn_by: ``[n, 32]``: their entries, or those of their families' representatives.
            tokens: ``[n]``.
        """
        found = np.where(self.held(drawn_by), RESERVE, TRAIN)
        return np.where(tokens == 0, EMPTY, found).astype(np.uint8)


class NearFamilies(Document):
    """How near copies were found (``data/families/near_families.py``).

    ``values`` MinHash values of 16 bits stand for a record's sequences, of the form ``text``
    (``formats/text_form.py``), in ``bands``, of the generator ``method`` under ``seed``. Two
    records that agree in a band are near if at least the share ``similar`` of their values is
    equal. Records of fewer than ``least_shingles`` are near to those of equal normalised text.
    """

    method: str
    text: str
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
    """What was admitted, how it was packed and what was refused.

    Construction checks that the manifest agrees with itself; what does not follow from the rest is
    refused. Rows are counted from parts alone.
    """

    PREDICATE_TYPE: ClassVar[str] = "https://govray.dev/prepare-manifest/v2"

    tokenizer: TokenizerIdentity
    context: Positive
    reserve: Reserve
    corpora: tuple[PreparedCorpus, ...]
    quarantine: tuple[Quarantined, ...] = ()
    rows: RowSchema | None = None
    families: NearFamilies | None = None

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
        if self.rows is not None:
            self._check_schema(self.rows)
        parts = [part for c in self.corpora for part in c.parts]
        files = [part.file for part in parts] + [p.reserve.file for p in parts if p.reserve]
        files += [c.planted.file for c in self.corpora if c.planted]
        files += [part.records_file for part in parts]
        if len(files) != len(set(files)):
            raise ValueError("two parts share one shard")
        for corpus in self.corpora:
            self._check_parts(corpus)
            if corpus.planted:
                self._check_planted(corpus.corpus, corpus.planted)
        return self

    def _check_schema(self, rows: RowSchema) -> None:
        if rows.kind == "tensors" and self.context != 1:
            raise ValueError("a row of tensors has one loss target, so the context is 1")
        for corpus in self.corpora:
            if corpus.planted:
                raise ValueError(f"{corpus.corpus}: canaries are planted in packed text alone")
            for k, part in enumerate(corpus.parts):
                if rows.kind == "tensors" and part.tokens != 2 * part.splits.train:
                    raise ValueError(f"{corpus.corpus}: part {k}: each record is a row of its own")

    @property
    def by_family(self) -> bool:
        """Whether near copies lie on one side of the reserve."""
        return self.families is not None

    @property
    def masked(self) -> bool:
        """Whether some tokens are no loss targets, so that rows' targets have to be looked up."""
        return self.rows is not None and self.rows.kind == "chat"

    @property
    def width(self) -> int:
        """Words of a full row as shards store it: tokens, or tensors four bytes at a time."""
        return (self.rows.words if self.rows else 0) or self.context + 1

    def _check_parts(self, corpus: PreparedCorpus) -> None:
        stop = 0
        for k, part in enumerate(corpus.parts):
            name = f"{corpus.corpus}: part {k}"
            if part.source != f"records-{k:05}.parquet":
                raise ValueError(f"{name} is {part.source}, out of order")
            if part.records[0] != stop or part.records[1] < stop:
                raise ValueError(f"{name} does not start at record {stop}")
            stop = part.records[1]
            self._check_rows(name, part)
            if part.reserve is not None:
                self._check_rows(f"{name}, reserve,", part.reserve)
            _check_counts(name, part)
            self._check_targets(name, part)

    def _check_targets(self, name: str, part: Part) -> None:
        if (part.targets is not None) != self.masked:
            raise ValueError(f"{name}: only rows of chat state their loss targets, and each part's")
        if part.targets is not None and part.targets.total > part.rows * self.context:
            raise ValueError(f"{name} says more loss targets than its rows have tokens for")

    def _check_rows(self, name: str, shard: Part | ReserveShard) -> None:
        rows = rows_of(shard.tokens, self.context)
        if shard.rows != rows:
            raise ValueError(f"{name} says {shard.rows} rows, its tokens make {rows}")

    def _check_planted(self, corpus: str, planted: Planted) -> None:
        made = [canary.sha256 for canary in planted.canaries.planted(corpus)]
        if [record.entry for record in planted.records] != made:
            raise ValueError(f"{corpus}: the planted records are not the canaries that are stated")
        if any(r.split != "train" or not 1 <= r.tokens <= self.context for r in planted.records):
            raise ValueError(f"{corpus}: a canary does not train, or does not fit into a row")
        if sum(group.rows for group in planted.row_groups) != planted.rows:
            raise ValueError(f"{corpus}: the row groups of the canaries have other rows")

    @cached_property
    def _rows(self) -> dict[str, _CorpusRows]:
        return {c.corpus: _CorpusRows(c, self.context + 1) for c in self.corpora}

    def _rows_of(self, corpus: str) -> _CorpusRows:
        try:
            return self._rows[corpus]
        except KeyError:
            raise Malformed("no such corpus in the prepare manifest", where=corpus) from None

    def corpus(self, name: str) -> PreparedCorpus:
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
        counts = [part.splits for part in self.corpus(corpus).parts]
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
        stated = [part.targets for part in self.corpus(corpus).parts]
        return sum(each.total for each in stated if each)

    def short_rows(self, corpus: str) -> tuple[Rows, Rows]:
        """The corpus's own rows that are not full, ascending, and the tokens of each."""
        return self._rows_of(corpus).short


def check_splits(manifest: Manifest, corpus: str, first: int, columns: RecordColumns) -> None:
    """Return if the splits of consecutive records follow from their entries, or their families'."""
    if manifest.by_family != (columns.families is not None):
        raise ValueError(f"{corpus}: the records {_STATES[not manifest.by_family]} families")
    found = manifest.reserve.splits(columns.drawn_by, columns.tokens)
    wrong = np.flatnonzero(found != columns.splits)
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(
            f"{corpus}: record {first + i} is marked {SPLITS[columns.splits[i]]}, "
            f"its {'family' if manifest.by_family else 'hash'} says {SPLITS[found[i]]}"
        )


class Representatives:
    """Compares the families of all corpora, in order, part after part.

    Each representative is one of the records and represents itself. In each corpus one record of
    every family stands for it. Both are the last of their kind. So it suffices to remember those
    that are still to come, by the first eight bytes of their entries.
    """

    def __init__(self) -> None:
        self._awaited, self._unfounded = (np.empty(0, np.uint64) for _ in range(2))

    def add(self, columns: RecordColumns) -> None:
        """Compare with the next part of a corpus."""
        if columns.families is None:
            return
        named, own = _first_word(columns.families), _first_word(columns.entries)
        itself = (columns.families == columns.entries).all(axis=1)
        self._awaited = np.setdiff1d(np.union1d(self._awaited, named[~itself]), own[itself])
        standing = columns.standing
        self._unfounded = np.setdiff1d(
            np.union1d(self._unfounded, named[~standing]), named[standing]
        )

    def end_corpus(self, corpus: str) -> None:
        """Return if each family of the corpus has a record that stands for it."""
        if self._unfounded.size:
            raise ValueError(
                f"{corpus}: no record stands for {self._unfounded.size} families in it"
            )

    def end(self) -> None:
        """Return if no representative is missing."""
        if self._awaited.size:
            raise ValueError(
                f"{self._awaited.size} families are named after a record that is not among theirs"
            )


def _first_word(entries: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(entries).view(np.uint64).reshape(-1, 4)[:, 0]


def check_streams(corpus: str, number: int, part: Part, columns: RecordColumns) -> None:
    """Return if a part's tokens are those of its records."""
    name = f"{corpus}: part {number}"
    held = [(name, TRAIN, part.tokens)]
    if part.reserve is not None:
        held.append((f"{name}, reserve,", RESERVE, part.reserve.tokens))
    for place, split, stated in held:
        tokens = columns.stream_tokens(split)
        if stated != tokens:
            raise ValueError(f"{place} says {stated} tokens, its records make {tokens}")
    stated_counts = (part.splits.train, part.splits.reserve, part.splits.empty)
    if stated_counts != (counts := columns.counts()):
        raise ValueError(
            f"{name} says {stated_counts} records to train, in reserve and empty, "
            f"its records are {counts}"
        )


def check_row_targets(corpus: str, number: int, manifest: Manifest, columns: RecordColumns) -> None:
    """Return if the loss targets of a part's rows are such as these rows can have."""
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
    """Return if none of these records, of any corpus, is a canary."""
    for corpus in manifest.corpora:
        planted = corpus.planted.records if corpus.planted else ()
        if columns.any_of(bytes.fromhex(record.entry) for record in planted):
            raise ValueError(f"{corpus.corpus}: a canary is also a record of a corpus")


def _check_counts(name: str, part: Part) -> None:
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

    def __init__(self, corpus: PreparedCorpus, row: int) -> None:
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
        found = [
            (end - 1, length)
            for end, part in zip(self.ends, self.corpus.parts, strict=True)
            if part.rows and (length := part.tokens - (part.rows - 1) * self._row) < self._row
        ]
        return (
            np.array([row for row, _ in found], np.int64),
            np.array([length for _, length in found], np.int64),
        )


def read_manifest(envelope: Envelope, *, where: str) -> Sealed[Manifest]:
    """The manifest in an envelope, whose signatures are not looked at."""
    return read(Manifest, envelope, where=where)


def verify_manifest(
    trust: TrustState, data: bytes | Envelope, *, at: datetime, where: str = "prepare manifest"
) -> Verified[Manifest]:
    """The manifest in an envelope that an operator signed."""
    envelope = data if isinstance(data, Envelope) else Envelope.parse(data, where=where)
    return trust.verify(Manifest, envelope, role="operator", at=at, where=where)
