"""Corpora whose records have scores of their own, and the monitor's decisions about them.

No model is trained. The package draws the reserve and the plan's order, chooses rows, ranks records
and decides. Only scores are made: a record's own, and its rows' about that.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from govray.data.probe_rows import Probes
from govray.governance.formats.record_columns import RecordColumns
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.entropy_profile import EntropyProfile, Measure, MonitoredCorpus, Side
from govray.governance.record.incidents import Incidents
from govray.governance.record.prepare_manifest import (
    Manifest,
    Part,
    PreparedCorpus,
    Reserve,
    TokenizerIdentity,
)
from govray.governance.record.prepared_records import PreparedRecords
from govray.governance.record.rank_evidence import top_sizes
from govray.governance.record.row_order import RowOrder

CONTEXT = 7
ROW = CONTEXT + 1
SHARE = 0.2
PROFILES = 4
CORPORA = 10
NOISE = 0.5
"""Of a row beside its record's score, whose deviation is 1."""
_DIGEST = "sha256:" + "0" * 64


def plain(draw: random.Random, lengths: Sequence[int]) -> list[float]:
    """Scores that nothing but the record decides."""
    return [draw.gauss(0, 1) for _ in lengths]


@dataclass(frozen=True)
class Corpus:
    """A corpus without effect: its rows' scores, and what chooses among them.

    Attributes:
        probes: The package's own choice of rows.
        train: Score of each training row.
        reserve: Score of each reserve row.
        owners: Record of each training row, by number.
        held: Record of each reserve row, by number.
    """

    probes: Probes
    train: npt.NDArray[np.float64]
    reserve: npt.NDArray[np.float64]
    owners: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]


def made_corpus(
    lengths: Sequence[int],
    scores: Sequence[float],
    seed: str,
    *,
    families: Sequence[int] | None = None,
) -> Corpus:
    """A corpus of these records, read at an even pace to the end of its second epoch.

    Args:
        lengths: Rows of each record.
        scores: Of each record.
        families: Of each record the one whose draw decides; by default itself.
    """
    salt = hashlib.sha256(f"salt {seed}".encode()).hexdigest()
    held = Reserve(share=SHARE, salt=salt)
    tokens = np.array([rows * ROW - 1 for rows in lengths], np.int64)
    digests = [
        hashlib.sha256(f"{seed} {number}".encode()).digest() for number in range(len(tokens))
    ]
    entries = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    drawn_by = entries if families is None else entries[list(families)]
    columns = RecordColumns(entries, tokens, held.splits(drawn_by, tokens))
    part = Part.of(
        columns,
        source="records-00000.parquet",
        file=f"class={'0' * 12}/one-00000.parquet",
        context=CONTEXT,
        rows_per_group=64,
        groups_digest=_DIGEST,
        reserve_groups_digest=_DIGEST,
    )
    prepared = PreparedCorpus(
        corpus="one", credential=_DIGEST, class_digest=_DIGEST, commitment=_DIGEST, parts=(part,)
    )
    manifest = Manifest(
        tokenizer=TokenizerIdentity(name="bytes", digest=_DIGEST, vocabulary=257, separator=256),
        context=CONTEXT,
        reserve=held,
        corpora=(prepared,),
    )
    rows = manifest.train_rows("one")
    stream = StreamPlan(
        id=_DIGEST,
        profile="all",
        corpora=(StreamCorpus(corpus="one", rows=rows),),
        phase=0,
        quota=max(1, math.ceil(2 * rows / PROFILES)),
        epochs=1000,
    )
    plan = BatchPlan(
        seed=int.from_bytes(digests[0][:4], "big"),
        max_steps=PROFILES,
        manifest=_DIGEST,
        context=CONTEXT,
        order=RowOrder(block=8, window=256),
        streams=(stream,),
    )
    found = PreparedRecords(manifest, lambda corpus, number: columns)
    owners = np.array([_most(found, row, "train") for row in range(rows)])
    held_by = np.array(
        [_most(found, row, "reserve") for row in range(manifest.reserve_rows("one"))], np.int64
    )
    noise = np.random.default_rng(plan.seed)
    known = np.array(scores)
    return Corpus(
        probes=Probes(Path("nothing is read"), manifest, plan, found),
        train=known[owners] + noise.normal(0, NOISE, len(owners)),
        reserve=known[held_by] + noise.normal(0, NOISE, len(held_by)),
        owners=owners,
        held=held_by,
    )


def _most(records: PreparedRecords, row: int, split: str) -> int:
    spans = records.row_records("one", row, "reserve" if split == "reserve" else "train")
    return max(spans, key=lambda span: span.stop - span.start).record


def sides(
    corpus: Corpus, step: int, rows: int, effect: npt.NDArray[np.float64] | float = 0.0
) -> Sides | None:
    """What a profile compares; None where it is not due.

    Args:
        effect: By which records trained on score higher, of all or of each by number.
    """
    chosen = corpus.probes.choose("one", step, rows)
    if min(len(chosen.trained), len(chosen.reserve)) < 2:
        return None
    records, ours = by_record(chosen.trained, corpus.owners, corpus.train)
    more = effect if isinstance(effect, float) else effect[records]
    return ours + more, by_record(chosen.reserve, corpus.held, corpus.reserve)[1], chosen.tested


def by_record(
    rows: Sequence[int], owners: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The records that some rows are of, and the mean score of each one's rows."""
    some = list(rows)
    records, places = np.unique(owners[some], return_inverse=True)
    return records, np.bincount(places, scores[some]) / np.bincount(places)


class Story:
    """One run's profiles of some corpora, and what they lead to."""

    def __init__(self, section: Monitoring, corpora: Sequence[str]) -> None:
        self._story = Incidents(
            section,
            {name: MonitoredCorpus("trunk", "flag", None, PROFILES) for name in corpora},
        )
        self.flagged: set[str] = set()

    def take(self, step: int, sides: Mapping[str, Sides]) -> None:
        """A profile of these corpora."""
        measures = tuple(_measure(name, *each) for name, each in sorted(sides.items()))
        if measures:
            profile = EntropyProfile(step=step, statistic="composite", measures=measures)
            self.flagged |= {each.corpus for each in self._story.take(profile)}


Sides = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], bool]
"""Scores of records trained on and of held-back ones, and whether these can be evidence."""


def _measure(
    name: str, ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], tested: bool
) -> Measure:
    trained = np.concatenate([np.ones(len(ours), int), np.zeros(len(theirs), int)])
    best = trained[np.argsort(-np.concatenate([ours, theirs]), kind="stable")].cumsum()
    return Measure(
        corpus=name,
        layer="head",
        probe=Side(records=len(ours), entropy=0.0),
        reserve=Side(records=len(theirs), entropy=0.0),
        top=tuple(int(best[size - 1]) for size in top_sizes(len(trained))),
        tested=tested,
    )
