"""The mixture of a stream: how often an epoch reads the rows of each of its corpora."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import VerificationFailed
from govray.governance.record import plan_rows, row_counts
from govray.governance.record.batch_plan import BatchPlan, StreamCorpus, StreamPlan, plan_streams
from govray.governance.record.row_order import RowOrder
from govray.governance.verify.verifier import verify
from tests.support.manifests import corpus as make_corpus
from tests.support.manifests import make_manifest, records_of
from tests.support.row_by_row import corpus_counts, corpus_totals
from tests.support.world import AT, World, record

STREAM = "sha256:" + "a" * 64
WHOLE = RowOrder(block=1, window=1 << 20)
ORDERS = st.just(WHOLE) | st.builds(RowOrder, block=st.integers(1, 3), window=st.integers(3, 9))


def member(name: str, rows: int, draws: int) -> StreamCorpus:
    return StreamCorpus(corpus=name, rows=rows, draws=None if draws == rows else draws)


def make_plan(*members: StreamCorpus, epochs: int = 1, order: RowOrder = WHOLE) -> BatchPlan:
    n = sum(each.drawn for each in members)
    stream = StreamPlan(id=STREAM, profile="p", corpora=members, phase=0, quota=n, epochs=epochs)
    return BatchPlan(
        seed=3, max_steps=epochs, manifest=STREAM, context=7, order=order, streams=(stream,)
    )


def reads_of(plan: BatchPlan) -> Counter[tuple[str, int]]:
    length = plan.stream(STREAM).length
    return Counter((corpus, row) for _, corpus, row in plan.read(STREAM, range(length)))


@given(
    rows=st.integers(1, 9), draws=st.integers(1, 30), other=st.integers(0, 5),
    epochs=st.integers(1, 5), order=ORDERS,
)  # fmt: skip
def test_all_rows_are_read_equally_often_up_to_one(
    rows: int, draws: int, other: int, epochs: int, order: RowOrder
) -> None:
    plan = make_plan(
        member("a", rows, draws), member("b", other, other), epochs=epochs, order=order
    )
    found = reads_of(plan)
    times = [found["a", row] for row in range(rows)]
    assert sum(times) == epochs * draws
    assert max(times) - min(times) <= 1
    assert all(found["b", row] == epochs for row in range(other))
    # The inverse: a step stands there as often as it reads the row. Here an epoch is a step.
    for name, count in (("a", rows), ("b", other)):
        for row in range(count):
            steps = plan.reads(name, row)
            assert list(steps) == sorted(steps)
            assert len(steps) == found[name, row]
            for step in set(steps):
                each = [read for read in plan.rows(step)[STREAM] if read[1:] == (name, row)]
                assert len(each) == steps.count(step)


@given(
    rows=st.integers(1, 9), draws=st.integers(1, 20), other=st.integers(0, 5),
    epochs=st.integers(1, 4), order=ORDERS, data=st.data(),
)  # fmt: skip
def test_a_row_counts_as_read_once_its_own_draw_was_read(
    rows: int, draws: int, other: int, epochs: int, order: RowOrder, data: st.DataObject
) -> None:
    plan = make_plan(
        member("a", rows, draws), member("a0", other, other), epochs=epochs, order=order
    )
    stop = data.draw(st.integers(0, plan.stream(STREAM).length))
    for name, count in (("a", rows), ("a0", other)):
        found = plan_rows.read_before(plan, name, np.arange(count), stop).tolist()
        read = {row for _, owner, row in plan.read(STREAM, range(stop)) if owner == name}
        told = {row for row in range(count) if found[row]}
        assert told <= read
        if name != "a" or draws <= rows:
            assert told == read


@settings(max_examples=40)
@given(draws=st.lists(st.integers(1, 9), min_size=2, max_size=2), epochs=st.integers(1, 3))
def test_counts_and_totals_are_those_of_a_walk(draws: list[int], epochs: int) -> None:
    manifest = make_manifest(
        make_corpus("alpha", [[9, 12, 7]], 7), make_corpus("beta", [[20, 3], [5]], 7)
    )
    rows = {name: manifest.train_rows(name) for name in ("alpha", "beta")}
    made = dict(zip(rows, draws, strict=True))
    [stream] = plan_streams(
        dict.fromkeys(rows, (STREAM, "p")), rows, rows_per_step={"p": 3}, epochs={"p": epochs},
        draws=made,
    )  # fmt: skip
    plan = BatchPlan(
        seed=1,
        max_steps=stream.length // 3 + 1,
        manifest=STREAM,
        context=7,
        order=RowOrder(block=1, window=1 << 20),
        streams=(stream,),
    )
    leaves = record(plan, manifest, STREAM)
    steps = [leaf.streams for leaf in leaves]
    expected = [corpus_counts(plan, manifest, each) for each in steps]
    assert row_counts.step_counts(plan, manifest, steps) == expected
    planned = [(leaf.step, leaf.streams) for leaf in leaves]
    assert row_counts.planned_counts(plan, manifest, planned) == expected
    records = records_of(manifest)
    assert row_counts.corpus_totals(leaves, plan, manifest, records) == corpus_totals(
        leaves, plan, manifest, records
    )


def mixed(plan: BatchPlan) -> BatchPlan:
    """Corpus alpha twice an epoch."""
    streams = [
        stream.model_copy(
            update={
                "corpora": tuple(
                    StreamCorpus(corpus=c.corpus, rows=c.rows, draws=2 * c.rows)
                    if c.corpus == "alpha"
                    else c
                    for c in stream.corpora
                )
            }
        )
        for stream in plan.streams
    ]
    fields = {name: getattr(plan, name) for name in BatchPlan.model_fields}
    return BatchPlan(**fields | {"streams": tuple(StreamPlan(**dict(each)) for each in streams)})


def test_a_model_of_a_mixture_verifies_and_another_mixture_does_not(tmp_path: Path) -> None:
    world = World(steps=20)
    model = verify(world.deploy(tmp_path / "a", plan=mixed), trust_root=world.root, at=AT)
    plain = verify(world.deploy(tmp_path / "b"), trust_root=world.root, at=AT)
    tokens = {
        each.path.name: {c.corpus: c.tokens for c in each.attestation.coverage}
        for each in (model, plain)
    }
    assert tokens["a"]["alpha"] == 2 * tokens["b"]["alpha"]
    assert tokens["a"]["beta"] == tokens["b"]["beta"]
    # A leaf of one under the plan of the other.
    others_leaves = plain.ledger.steps

    def others(made: list) -> list:  # type: ignore[type-arg]
        place = next(k for k, leaf in enumerate(made) if leaf.corpora != others_leaves[k].corpora)
        made[place] = made[place].model_copy(update={"corpora": others_leaves[place].corpora})
        return made

    folder = world.deploy(tmp_path / "c", plan=mixed, leaves=others)
    with pytest.raises(VerificationFailed, match=r"step 10 \(ledger\)"):
        verify(folder, trust_root=world.root, at=AT)
