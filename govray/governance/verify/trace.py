"""Was this record trained on, and where: record hash → corpora, rows, steps, layer groups.

The answer is exact. The manifest has every record's entry, packing is arithmetic, and the batch
plan is invertible. So only a hash table is searched. Records are under commitments
(``policy/record_commitment.py``), so the verified files alone tell nothing of a record. The
corpus's secret lets one search it, and an opening shows where its one record stands.

One changed byte makes another record; similar ones are found by their text
(``data/similarity/near_copies.py``), and `sighting` says where those stand.

It says nothing about data that was not presented to govray.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from govray.errors import Refused, UsageError
from govray.governance.formats.record_columns import Split
from govray.governance.policy.record_commitment import RecordOpening
from govray.governance.verify.verifier import VerifiedModel

MANY_ROWS = 4096
"""Of a record with more, the rows that were read are looked through, not all that it has."""


@dataclass(frozen=True)
class Sighting:
    """One place where a record stands in the recorded data.

    Attributes:
        record: Index in the corpus, in Merkle order; canaries count on behind its records.
        split: ``train``, ``reserve`` (never trained on) or ``empty``.
        rows: The corpus's packed rows that hold some of its tokens.
        steps: The recorded steps that read one of these rows, ascending; empty when the run
            never reached them.
        groups: The layer groups that those steps' gradients updated; empty without steps.
        tokens: The record's own tokens in the rows that were read, each counted once; a canary's
            in each of its rows.
        planted: Whether it is a canary that the operator planted, and no record of the corpus.
    """

    corpus: str
    record: int
    split: Split
    rows: range
    steps: tuple[int, ...]
    groups: tuple[str, ...]
    tokens: int
    planted: bool = False


def outcome(split: str, steps: int) -> str:
    """What became of a record, for people: in which split it is is not how it was used."""
    if split == "train":
        return "trained on" if steps else "admitted, and no step read it"
    return "held back, never trained on" if split == "reserve" else "empty, never trained on"


def trace(
    model: VerifiedModel,
    record_sha256: str,
    secrets: Mapping[str, bytes] | None = None,
) -> list[Sighting]:
    """Every place of the record with this SHA-256, by corpus and index.

    An empty list means: not found in the recorded data, as far as it could be searched. `closed`
    says which corpora could not.

    Args:
        model: As verified, with its records at hand.
        record_sha256: 64 hex digits, with or without ``sha256:``.
        secrets: Corpus → what its records are committed under (`record_commitment.read_secret`).

    Raises:
        CouldNotCheck: The model's records are not at hand.
    """
    digest = record_sha256.lower().removeprefix("sha256:")
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise UsageError(
            "not a SHA-256", where=record_sha256[:80], do="Give the 64 hex digits of the record."
        )
    places = model.records.find(digest, secrets)
    return [sighting(model, corpus, record) for corpus, record in places]


def closed(model: VerifiedModel, secrets: Mapping[str, bytes]) -> tuple[str, ...]:
    """The corpora whose commitments none of the secrets opens."""
    corpora = model.manifest.document.corpora
    return tuple(c.corpus for c in corpora if c.corpus not in secrets)


def check_opening(model: VerifiedModel, opening: RecordOpening, *, where: str) -> None:
    """Return if the record that an opening shows is in one of the model's corpora.
    The corpus's credential shows it. The list of records is not needed."""
    credential = model.credentials.get(opening.corpus)
    if credential is None:
        raise Refused(
            f"the model was not trained on a corpus {opening.corpus!r}",
            where=where,
            do="Use an opening of one of its corpora: govray show lists them",
        )
    opening.verify(credential.document.records, where=where)


def trace_opening(model: VerifiedModel, opening: RecordOpening, *, where: str) -> Sighting:
    """Where the record that an opening shows stands."""
    check_opening(model, opening, where=where)
    return sighting(model, opening.corpus, opening.index)


def sighting(model: VerifiedModel, corpus: str, record: int) -> Sighting:
    """Where one record of a corpus stands, by its index in Merkle order."""
    if len(model.records.record_rows(corpus, record)) > MANY_ROWS:
        rows_read = _read(model).get(corpus, {})
        return _sighting(model, corpus, record, _Read(rows_read), _holdings(model, corpus))
    # A gate leaves rows of the plan out, which the leaf's corpora show.
    recorded = {leaf.step for leaf in model.ledger.steps if corpus in leaf.corpora}
    plan = model.attestation.plan
    holds = _holdings(model, corpus)
    return _sighting(
        model,
        corpus,
        record,
        lambda rows: ((row, recorded.intersection(plan.reads(corpus, row))) for row in rows),
        holds,
    )


def sightings(model: VerifiedModel) -> Iterator[Sighting]:
    """Where every record stands, corpus by corpus, in Merkle order, a corpus's canaries behind.

    The same as `sighting` of each. It goes once over what the ledger says was read, so it costs
    little for records of which nothing was.
    """
    read = _read(model)
    for prepared in model.manifest.document.corpora:
        planted = prepared.planted.records if prepared.planted else ()
        steps_of = _Read(read.get(prepared.corpus, {}))
        holds = lru_cache(maxsize=4)(_holdings(model, prepared.corpus))  # neighbours share a row
        for record in range(model.records.count(prepared.corpus) + len(planted)):
            yield _sighting(model, prepared.corpus, record, steps_of, holds)


def _read(model: VerifiedModel) -> dict[str, dict[int, set[int]]]:
    """Corpus → row → the recorded steps that read it."""
    read: dict[str, dict[int, set[int]]] = {}
    for leaf in model.ledger.steps:
        for stream, (start, stop) in leaf.streams.items():
            for _, corpus, row in model.attestation.plan.read(stream, range(start, stop)):
                if corpus in leaf.corpora:
                    read.setdefault(corpus, {}).setdefault(row, set()).add(leaf.step)
    return read


class _Read:
    """The rows of one corpus that were read. Only those of one record are visited, since a manifest
    may state a record of any number of rows."""

    def __init__(self, steps: Mapping[int, Collection[int]]) -> None:
        self._steps = steps
        self._rows = sorted(steps)

    def __call__(self, rows: range) -> Iterator[tuple[int, Collection[int]]]:
        first, last = bisect_left(self._rows, rows.start), bisect_left(self._rows, rows.stop)
        return ((row, self._steps[row]) for row in self._rows[first:last])


def _holdings(model: VerifiedModel, corpus: str) -> Callable[[int], Mapping[int, int]]:
    """Row of the corpus → record → its tokens in the row."""

    def holds(row: int) -> dict[int, int]:
        tokens: dict[int, int] = {}
        for span in model.records.row_records(corpus, row):
            tokens[span.record] = tokens.get(span.record, 0) + span.stop - span.start
        return tokens

    return holds


def _sighting(
    model: VerifiedModel,
    corpus: str,
    record: int,
    read: Callable[[range], Iterable[tuple[int, Collection[int]]]],
    holds: Callable[[int], Mapping[int, int]],
) -> Sighting:
    """``read`` gives the rows of a range and the recorded steps that read them, ``holds`` what
    stands in a row."""
    records = model.records
    rows = records.record_rows(corpus, record)
    steps: set[int] = set()
    tokens = 0
    for row, by in read(rows):
        if by:
            steps.update(by)
            tokens += holds(row).get(record, 0)
    return Sighting(
        corpus=corpus,
        record=record,
        split=records.record(corpus, record).split,
        planted=record >= records.count(corpus),
        rows=rows,
        steps=tuple(sorted(steps)),
        groups=_updated(model, corpus, steps) if steps else (),
        tokens=tokens,
    )


def _updated(model: VerifiedModel, corpus: str, steps: Set[int]) -> tuple[str, ...]:
    """The layer groups that a corpus's rows updated in these steps, of any branch."""
    if corpus not in model.routes.changing:
        return tuple(sorted(model.routes[corpus].groups))
    uses = (leaf.corpora.get(corpus) for leaf in model.ledger.steps if leaf.step in steps)
    taken = {model.routes.taken(corpus, use.route) for use in uses if use}
    return tuple(sorted({group for route in taken for group in route.groups}))
