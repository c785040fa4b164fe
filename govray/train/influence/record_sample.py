"""Records of a corpus that a run trained on, drawn from a seed, and the rows that hold them.

Every record that some step read has the same chance, whatever its length. Canaries are not among
them: they are the operator's, and no records of the corpus.

A row's loss target belongs to the record that its token is of; a separator belongs to the record
before it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from govray.data.step_reader import ArrowRows
from govray.engine.memorization.probe_sharing import pick
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.prepared_records import PreparedRecords

_LOOKED_AT = 4096
"""At most this many records of a corpus are looked at for those that were read."""


@dataclass(frozen=True, kw_only=True)
class RecordSample:
    """Records of one corpus.

    Attributes:
        corpus: Whose.
        records: Number in the corpus → entry in hex, ascending.
        read: How many records of the corpus were read; an estimate for a large corpus.
        rows: Each row that holds a token of one of the records → the steps that read it.
    """

    corpus: str
    records: dict[int, str]
    read: int
    rows: dict[int, tuple[int, ...]]

    @property
    def share(self) -> float:
        """Sampled among all that were read."""
        return len(self.records) / max(self.read, len(self.records), 1)


def sample_records(
    records: PreparedRecords,
    plan: BatchPlan,
    corpus: str,
    steps: frozenset[int],
    count: int,
    seed: int,
) -> RecordSample:
    """Draw records.

    Args:
        records: Of the prepared folder.
        plan: The run's.
        corpus: Whose.
        steps: Those that read the corpus and were not undone.
        count: How many at most.
        seed: What they are drawn from, with the corpus.
    """
    own = records.count(corpus)
    draw = pick(own, _LOOKED_AT, seed, corpus, "influence")
    looked_at = len(draw)
    random.Random(f"influence {seed} {corpus}").shuffle(draw)  # noqa: S311 - a sample
    found: dict[int, str] = {}
    reads: dict[int, tuple[int, ...]] = {}
    read = 0
    for number in draw:
        record = records.record(corpus, number)
        if record.split != "train":
            continue
        rows = {
            row: tuple(step for step in plan.reads(corpus, row) if step in steps)
            for row in records.record_rows(corpus, number)
        }
        if not any(rows.values()):
            continue
        read += 1
        if len(found) < count:
            found[number] = record.entry
            reads |= {row: some for row, some in rows.items() if some}
    return RecordSample(
        corpus=corpus,
        records=dict(sorted(found.items())),
        read=round(read * own / looked_at) if looked_at else 0,
        rows=dict(sorted(reads.items())),
    )


def row_owners(
    records: PreparedRecords, manifest: Manifest, corpus: str, row: int, tokens: list[int]
) -> list[int | None]:
    """The record of each loss target of a row, which are its tokens but the first.

    Args:
        records, manifest: Of the prepared folder.
        corpus: Whose row.
        row: Its number.
        tokens: Its token ids.
    """
    # A separator in front ends a record of which the row holds nothing else.
    owners: list[int | None] = [None] if tokens[0] == manifest.tokenizer.separator else []
    for span in records.row_records(corpus, row):
        owners += [span.record] * (span.stop - span.start + 1)
    return (owners + [None] * len(tokens))[1 : len(tokens)]


def own_rows(rows: ArrowRows, sample: RecordSample) -> Iterator[tuple[int, list[int]]]:
    """Number and token ids of each row of a sample.

    Raises:
        Refused: The rows are not those of the manifest, or a shard is missing.
    """
    for row in sample.rows:
        yield row, rows.row(sample.corpus, row).tolist()


def canary_targets(
    records: PreparedRecords,
    manifest: Manifest,
    plan: BatchPlan,
    corpus: str,
    steps: frozenset[int],
) -> int:
    """Loss targets of planted rows that some steps read, a row counting as often as it was read."""
    first, last = manifest.own_rows(corpus), manifest.train_rows(corpus)
    planted = np.arange(first, last)
    if not planted.size:
        return 0
    targets = records.targets_of(corpus, planted)
    return sum(
        int(count) * sum(step in steps for step in plan.reads(corpus, row))
        for row, count in zip(range(first, last), targets, strict=True)
    )
