"""Counts over arrays are those of a walk over the rows, for every plan, manifest and ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.governance.formats.record_columns import ManifestRecord
from govray.governance.record import plan_rows, prepared_records, row_counts
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.canary import Canaries
from govray.governance.record.ledger import CorpusUse, Leaf
from govray.governance.record.prepare_manifest import Manifest, Planted, PreparedCorpus, RowGroup
from govray.governance.record.row_order import RowOrder
from tests.support import row_by_row
from tests.support.manifests import DIGEST, corpus, make_manifest, records_of

NAMES = ["a", "b", "c"]
STREAMS = ["sha256:" + digit * 64 for digit in "01"]
CANARIES = Canaries(format="{name}={secret};", digits=4, count=2, repeats=3, seed=2)


def with_canaries(prepared: PreparedCorpus) -> PreparedCorpus:
    planted = Planted(
        canaries=CANARIES,
        records=tuple(
            ManifestRecord(each.sha256, len(each.content), "train")
            for each in CANARIES.planted(prepared.corpus)
        ),
        file=f"class={'0' * 12}/{prepared.corpus}-planted.parquet",
        row_groups=(RowGroup(rows=6, digest=DIGEST),),
    )
    return prepared.model_copy(update={"planted": planted})


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    context = (
        draw(st.integers(14, 20)) if (canaries := draw(st.booleans())) else draw(st.integers(1, 9))
    )
    lengths = st.lists(st.integers(0, 25), max_size=8)
    corpora = [corpus(name, draw(st.lists(lengths, max_size=4)), context) for name in NAMES]
    if canaries:
        corpora[0] = with_canaries(corpora[0])
    return make_manifest(*corpora, context=context)


@st.composite
def plans(draw: st.DrawFn, manifest: Manifest) -> BatchPlan:
    streams = {name: (draw(st.sampled_from(STREAMS)), "all") for name in NAMES}
    rows = {name: manifest.train_rows(name) for name in NAMES}
    plan = BatchPlan(
        seed=draw(st.integers(0, 99)),
        max_steps=draw(st.integers(1, 12)),
        manifest=DIGEST,
        context=manifest.context,
        order=RowOrder(block=1, window=1 << 20),
        streams=plan_streams(
            streams,
            rows,
            rows_per_step={"all": draw(st.integers(1, 9))},
            every={"all": draw(st.integers(1, 3))},
            epochs={"all": draw(st.integers(1, 3))},
        ),
    )
    return plan.without(*draw(st.sets(st.sampled_from(NAMES), max_size=2)))


@given(st.data())
@settings(max_examples=60)
def test_both_count_the_same(data: st.DataObject) -> None:
    manifest = data.draw(manifests())
    plan = data.draw(plans(manifest))
    steps = [
        {stream: (r.start, r.stop) for stream, r in plan.positions(step).items()}
        for step in range(plan.max_steps)
    ]
    with pytest.MonkeyPatch.context() as patch:  # so that everything is cut into pieces
        patch.setattr(plan_rows, "_AT_ONCE", data.draw(st.integers(1, 40)))
        patch.setattr(row_counts, "_PENDING", data.draw(st.integers(0, 20)))
        patch.setattr(prepared_records, "_AT_ONCE", data.draw(st.integers(1, 20)))
        counted = row_counts.step_counts(plan, manifest, steps)
        assert counted == [row_by_row.corpus_counts(plan, manifest, each) for each in steps]
        patch.setattr(row_counts, "_PER_SEARCH", data.draw(st.sampled_from([1, 4, 256])))
        order = data.draw(st.permutations(range(plan.max_steps)))
        planned = [(step, steps[step]) for step in order]
        assert row_counts.planned_counts(plan, manifest, planned) == [
            counted[step] for step in order
        ]
        leaves = [
            Leaf(
                branch=branch,
                step=step,
                world_size=1,
                policy=DIGEST,
                plan=plan.digest,
                streams=ranges,
                corpora={
                    name: CorpusUse(rows=rows, targets=max(targets, 1))
                    for name, (rows, targets) in counts.items()
                    if data.draw(st.booleans())  # a gate left the others out
                },
            )
            for branch in range(2)
            for step, (ranges, counts) in enumerate(zip(steps, counted, strict=True))
        ]
        records = records_of(manifest)
        found = row_counts.corpus_totals(leaves, plan, manifest, records)
        assert found == row_by_row.corpus_totals(leaves, plan, manifest, records)


def test_more_tokens_than_64_bits_count_are_still_counted() -> None:
    context = 2**52
    prepared = corpus("a", [[2**53 - 2]] * 1500 + [[5]], context)
    manifest = make_manifest(prepared, context=context)
    assert sum(part.tokens for part in prepared.parts) > 2**63
    rows = manifest.train_rows("a")
    plan = BatchPlan(
        seed=1,
        max_steps=2,
        manifest=DIGEST,
        context=context,
        order=RowOrder(block=1, window=1 << 20),
        streams=plan_streams(
            {"a": (STREAMS[0], "all")}, {"a": rows}, rows_per_step={"all": rows // 2 + 1}
        ),
    )
    leaves = [
        Leaf(
            step=step,
            world_size=1,
            policy=DIGEST,
            plan=plan.digest,
            streams={stream: (r.start, r.stop) for stream, r in plan.positions(step).items()},
            corpora={"a": CorpusUse(rows=1, targets=1)},
        )
        for step in range(2)
    ]
    for some in (leaves, leaves[:1]):
        records = records_of(manifest)
        found = row_counts.corpus_totals(some, plan, manifest, records)
        walked = row_by_row.corpus_totals(some, plan, manifest, records)
        # No leaf can state as many targets; its own word is what counts.
        assert walked["a"].tokens > 2**62
        assert found == {"a": replace(walked["a"], tokens=len(some))}
    steps = [leaf.streams for leaf in leaves]
    assert row_counts.step_counts(plan, manifest, steps) == [
        row_by_row.corpus_counts(plan, manifest, each) for each in steps
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9))), st.integers(1, 8))
def test_an_epoch_is_covered_if_each_of_its_positions_is(
    ranges: list[tuple[int, int]], n: int
) -> None:
    stretches = [(start, start + length) for start, length in ranges]
    held = {position for start, stop in stretches for position in range(start, stop)}
    expected = any(held >= set(range(e * n, (e + 1) * n)) for e in range(40))
    assert row_counts._covers_an_epoch(stretches, n) == expected
