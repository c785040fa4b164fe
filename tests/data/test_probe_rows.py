"""Probe rows: trained on, the newest, and reserve rows that no step reads."""

from __future__ import annotations

from pathlib import Path

from govray.data.probe_rows import Probes, newest_rows
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan
from govray.governance.record.row_order import RowOrder
from tests.support.manifests import corpus, make_manifest, records_of
from tests.support.table import each_row

DIGEST = "sha256:" + "0" * 64

WHOLE = RowOrder(block=1, window=1 << 20)


def plan(
    *,
    every: int = 1,
    phase: int = 0,
    epochs: int = 3,
    order: RowOrder = WHOLE,
) -> BatchPlan:
    stream = StreamPlan(
        id=DIGEST,
        profile="p",
        corpora=(StreamCorpus(corpus="one", rows=7), StreamCorpus(corpus="two", rows=30)),
        quota=5,
        every=every,
        phase=phase,
        epochs=epochs,
    )
    return BatchPlan(
        seed=3, max_steps=40, manifest=DIGEST, context=4, order=order, streams=(stream,)
    )


@each_row(
    ("every", "phase", "step", "corpus", "order"),
    [
        (1, 0, 0, "one", WHOLE),
        (1, 0, 39, "two", RowOrder(block=4, window=10)),
        (3, 2, 2, "two", WHOLE),
        (3, 2, 7, "one", RowOrder(block=4, window=10)),
        (4, 0, 39, "one", WHOLE),
        (4, 0, 1, "two", WHOLE),
    ],
)
def test_the_newest_rows_are_those_that_steps_read(
    every: int, phase: int, step: int, corpus: str, order: RowOrder
) -> None:
    made = plan(every=every, phase=phase, order=order)
    read = [
        row
        for each in range(step + 1)
        for rows in made.rows(each).values()
        for _, owner, row in rows
        if owner == corpus
    ]
    newest = list(dict.fromkeys(reversed(read)))
    assert list(newest_rows(made, corpus, step, 4)) == newest[:4]
    assert list(newest_rows(made, corpus, step, 100)) == newest
    assert list(newest_rows(made, corpus, step, 100, below=5)) == [r for r in newest if r < 5]


def test_what_is_never_read_has_no_probe_rows() -> None:
    assert newest_rows(plan(), "three", 9, 4) == ()
    assert newest_rows(plan().without("one"), "one", 9, 4) == ()
    assert newest_rows(plan(every=5, phase=4), "one", 3, 4) == ()


LENGTHS = [3, 40, 9, 1, 2, 70, 12, 8, 25, 4] * 12


def probes(steps: int = 400, *, equal: int = 1) -> Probes:
    lengths = [LENGTHS[i // equal] for i in range(len(LENGTHS))]
    parts = corpus("one", [lengths], 7, equal=equal)
    manifest = make_manifest(parts, context=7)
    stream = StreamPlan(
        id=DIGEST,
        profile="p",
        corpora=(StreamCorpus(corpus="one", rows=manifest.train_rows("one")),),
        phase=0,
        quota=1,
        epochs=9,
    )
    made = BatchPlan(
        seed=3,
        max_steps=steps,
        manifest=DIGEST,
        context=7,
        order=RowOrder(block=1, window=1 << 20),
        streams=(stream,),
    )
    return Probes(Path("nowhere"), manifest, made, records_of(manifest))  # nothing is read here


def test_each_record_has_one_row_and_the_newest_come_first() -> None:
    made = probes()
    long_ago, later = made.choose("one", 200, 8), made.choose("one", 399, 8)
    for chosen in (long_ago, later):
        assert chosen.tested
        assert len(set(chosen.trained_records)) == len(chosen.trained) == 8
    everything = made.choose("one", 399, 1000)
    assert everything.trained[:8] == later.trained
    assert len(set(everything.trained_records)) == len(everything.trained)
    # A record's row is the same whenever it is looked at.
    rows = dict(zip(everything.trained_records, everything.trained, strict=True))
    assert all(
        rows[entry] == row
        for entry, row in zip(long_ago.trained_records, long_ago.trained, strict=True)
    )
