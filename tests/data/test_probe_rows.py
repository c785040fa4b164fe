"""Probe rows: trained on, and reserve rows that stand where rows were read."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

import numpy as np

from govray.data.probe_rows import Probes, newest_rows
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.prepared_records import PARTS_KEPT, PartRecords
from govray.governance.record.row_order import RowOrder
from tests.support.manifests import (
    DIGEST,
    WHOLE,
    corpus,
    make_manifest,
    one_stream,
    records_of,
)
from tests.support.table import each_row


def plan(**changes: Any) -> BatchPlan:
    stream = {"steps": 40, "quota": 5, "context": 4, "epochs": 3} | changes
    return one_stream({"one": 7, "two": 30}, **stream)


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


def probes(*, parts: int = 1) -> Probes:
    manifest = make_manifest(corpus("one", [LENGTHS] * parts, 7), context=7)
    made = one_stream({"one": manifest.train_rows("one")}, steps=4000, quota=1, epochs=9)
    return Probes(Path("nowhere"), manifest, made, records_of(manifest))  # nothing is read here


def test_each_record_has_one_row_whenever_it_is_looked_at() -> None:
    made = probes()
    everything = made.choose("one", 399, 60)
    rows = dict(zip(everything.trained_records, everything.trained, strict=True))
    assert len(rows) == len(everything.trained) == 60
    for step in (200, 399):
        chosen = made.choose("one", step, 8)
        assert chosen.tested
        assert len(set(chosen.trained_records)) == len(chosen.trained) == 8
        assert all(
            rows[entry] == row
            for entry, row in zip(chosen.trained_records, chosen.trained, strict=True)
        )


def test_both_sides_lie_where_rows_were_read() -> None:
    made = probes()
    whole = made.choose("one", 399, 1000)
    for step in (40, 80):
        chosen = made.choose("one", step, 1000)
        read = {row for each in range(step + 1) for _, _, row in made._plan.rows(each)[DIGEST]}
        places = made._records.places("one", np.array(whole.reserve)).tolist()
        by_place = zip(whole.reserve, whole.reserve_records, places, strict=True)
        by_row = zip(whole.trained, whole.trained_records, whole.trained, strict=True)
        assert set(chosen.trained) == read_of(by_row, read)
        assert set(chosen.reserve) == read_of(by_place, read)
        assert len(chosen.reserve) < len(whole.reserve)
        some = made.choose("one", step, 3)
        assert set(some.trained_records) < set(chosen.trained_records)
        assert some == made.choose("one", step, 3)  # by seed, corpus and step alone
    assert some.trained != made.choose("one", 81, 3).trained


def read_of(rows: Iterable[tuple[int, str, int]], read: Set[int]) -> set[int]:
    """Those of (row, record, place) that were read, of records whose first one here was."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row, record, place in rows:
        found.setdefault(record, []).append((row, place))
    return {
        row for own in found.values() if own[0][1] in read for row, place in own if place in read
    }


def test_where_records_are_few_several_rows_stand_for_each() -> None:
    made = probes()
    some, whole = made.choose("one", 3000, 16), made.choose("one", 3000, 1000)
    assert len(some.trained) == len(set(some.trained_records))
    for rows, records, split in (
        (whole.trained, whole.trained_records, "train"),
        (whole.reserve, whole.reserve_records, "reserve"),
    ):
        assert len(rows) > len(set(records))
        for row, entry in zip(rows, records, strict=True):
            spans = made._records.row_records("one", row, split)
            most = max(spans, key=lambda span: (span.stop - span.start, -span.record))
            assert made._records.record("one", most.record).entry == entry


def test_a_profile_opens_few_parts() -> None:
    made = probes(parts=30)
    opened: set[int] = set()

    def part(corpus: str, number: int) -> PartRecords:
        opened.add(number)
        return kept(corpus, number)

    kept = made._records.part
    made._records.part = part  # type: ignore[method-assign]
    chosen = made.choose("one", 3000, 1000)
    assert chosen.tested
    assert 1 < len(opened) <= PARTS_KEPT
