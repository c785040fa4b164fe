"""The batch plan: a bijection that depends on nothing it should not depend on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.errors import Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.governance.record.batch_plan import (
    BatchPlan,
    StreamCorpus,
    StreamPlan,
    plan_streams,
    rank_slice,
    slice_rank,
)
from govray.governance.record.row_order import RowOrder
from tests.support.table import each_row

MANIFEST = canonical_json.sha256(b"a manifest")
ZERO = "sha256:" + "00" * 32
WHOLE = RowOrder(block=1, window=1 << 20)
"""Every epoch is one window."""

few = settings(max_examples=40)


def stream(name: str, corpora: dict[str, int], **settings: Any) -> StreamPlan:
    return StreamPlan(
        id=canonical_json.sha256(name.encode()),
        profile=name,
        corpora=tuple(StreamCorpus(corpus=c, rows=r) for c, r in sorted(corpora.items())),
        **{"quota": 3, "phase": 0} | settings,
    )


def make_plan(*streams: StreamPlan, **changes: Any) -> BatchPlan:
    fields: dict[str, Any] = {"seed": 17, "max_steps": 40, "manifest": MANIFEST, "context": 8}
    fields["order"] = WHOLE
    fields["streams"] = tuple(sorted(streams, key=lambda s: s.id))
    return BatchPlan(**fields | changes)


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    """One to three streams of one to three corpora, of every shape that quotas can take."""
    streams = []
    for s in range(draw(st.integers(1, 3))):
        corpora = {f"c{s}{k}": draw(st.integers(0, 9)) for k in range(draw(st.integers(1, 3)))}
        every = draw(st.integers(1, 4))
        streams.append(
            stream(
                f"s{s}",
                corpora,
                quota=draw(st.integers(1, 5)),
                every=every,
                phase=draw(st.integers(0, every - 1)),
                epochs=draw(st.integers(1, 3)),
            )
        )
    block = draw(st.integers(1, 4))
    window = draw(st.integers(block, 9))
    return make_plan(
        *streams,
        seed=draw(st.integers(0, 2**53 - 1)),
        max_steps=draw(st.integers(1, 60)),
        order=draw(st.sampled_from([WHOLE, RowOrder(block=block, window=window)])),
    )


def enough_steps(plan: BatchPlan) -> BatchPlan:
    """The plan with so many steps that every epoch is read to its end."""
    steps = max(s.every * (s.length // s.quota + 2) for s in plan.streams)
    return make_plan(*plan.streams, seed=plan.seed, max_steps=steps, order=plan.order)


def all_rows(plan: BatchPlan) -> list[tuple[int, str, int, str, int]]:
    return [
        (step, stream, position, corpus, row)
        for step in range(plan.max_steps)
        for stream, rows in plan.rows(step).items()
        for position, corpus, row in rows
    ]


@few
@given(plans())
def test_every_row_is_read_once_per_epoch(plan: BatchPlan) -> None:
    plan = enough_steps(plan)
    read: dict[tuple[str, int, int], int] = {}
    for _, stream_id, position, corpus, row in all_rows(plan):
        epoch = position // plan.stream(stream_id).n
        read[corpus, row, epoch] = read.get((corpus, row, epoch), 0) + 1
    expected = {
        (c.corpus, row, epoch): 1
        for s in plan.streams
        for c in s.corpora
        for row in range(c.rows)
        for epoch in range(s.epochs)
    }
    assert read == expected


@few
@given(plans())
def test_a_silent_stream_stays_silent(plan: BatchPlan) -> None:
    """No wrap and no refill: after the epochs nothing, and at and after max_steps nothing."""
    plan = enough_steps(plan)
    for s in plan.streams:
        after = s.every * -(-s.length // s.quota)
        assert not any(s.positions(after + k) for k in range(s.every))
    assert plan.positions(plan.max_steps) == {}
    assert plan.positions(-1) == {}


@few
@given(plans(), st.integers(1, 7))
def test_ranks_partition_every_step(plan: BatchPlan, world: int) -> None:
    for step in range(min(plan.max_steps, 10)):
        for positions in plan.positions(step).values():
            slices = [rank_slice(positions, rank, world) for rank in range(world)]
            assert [p for s in slices for p in s] == list(positions)
            lengths = [len(s) for s in slices]
            assert max(lengths) - min(lengths) <= 1
            ranks = [slice_rank(len(positions), i, world) for i in range(len(positions))]
            assert ranks == [rank for rank, length in enumerate(lengths) for _ in range(length)]


@few
@given(plans())
def test_dropping_a_stream_moves_no_other(plan: BatchPlan) -> None:
    dropped = plan.streams[0].id
    rest = make_plan(*plan.streams[1:], seed=plan.seed, max_steps=plan.max_steps, order=plan.order)
    for step in range(plan.max_steps):
        kept = {i: rows for i, rows in plan.rows(step).items() if i != dropped}
        assert rest.rows(step) == kept


@few
@given(plans(), st.integers(1, 9))
def test_more_rows_in_one_stream_move_no_other(plan: BatchPlan, more: int) -> None:
    first, *others = plan.streams
    corpus, *rest = first.corpora
    grown = StreamCorpus(corpus=corpus.corpus, rows=corpus.rows + more)
    changed = StreamPlan(**dict(first) | {"corpora": (grown, *rest)})
    with_more = make_plan(
        changed, *others, seed=plan.seed, max_steps=plan.max_steps, order=plan.order
    )
    for step in range(plan.max_steps):
        before, after = plan.rows(step), with_more.rows(step)
        assert all(before.get(s.id) == after.get(s.id) for s in others)


@few
@given(plans(), st.data())
def test_tombstones_move_nothing(plan: BatchPlan, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(plan.corpora))
    without = plan.without(gone)
    for step in range(plan.max_steps):
        assert without.positions(step) == plan.positions(step)
    assert all_rows(without) == [r for r in all_rows(plan) if r[3] != gone]
    assert without.digest != plan.digest


def test_leaving_a_corpus_out_of_its_stream_does_move_others() -> None:
    """The control: what tombstones are for."""
    both = make_plan(stream("s", {"a": 20, "b": 20}))
    alone = make_plan(stream("s", {"a": 20}))
    assert all_rows(both.without("b")) != all_rows(alone)


@few
@given(plans())
def test_reads_inverts_rows(plan: BatchPlan) -> None:
    read: dict[tuple[str, int], list[int]] = {}
    for step, _, _, corpus, row in all_rows(plan):
        read.setdefault((corpus, row), []).append(step)
    for s in plan.streams:
        for c in s.corpora:
            for row in range(c.rows):
                assert list(plan.reads(c.corpus, row)) == read.get((c.corpus, row), [])


def test_golden_digest() -> None:
    plan = make_plan(stream("s", {"a": 3, "b": 4}, epochs=2), excluded=("a",))
    assert canonical_json.encode(plan.to_json()) == (
        b'{"context":8,"excluded":["a"],"manifest":"' + MANIFEST.encode() + b'","maxSteps":40,'
        b'"order":{"block":1,"window":1048576},"seed":17,"streams":[{"corpora":[{"corpus":"a","rows":3},{"corpus":"b","rows":4}],'
        b'"epochs":2,"every":1,"id":"' + plan.streams[0].id.encode() + b'","phase":0,"profile":"s",'
        b'"quota":3}]}'
    )


@each_row(
    ("change", "says"),
    [
        (lambda p: p["streams"].reverse(), "sorted"),
        (lambda p: p["streams"][0]["corpora"].reverse(), "sorted"),
        (lambda p: p["streams"].__setitem__(1, p["streams"][0]), "distinct"),
        (lambda p: p["streams"][0]["corpora"][1].update(corpus="d"), "two streams"),
        (lambda p: p.update(excluded=["zeta"]), "zeta"),
        (lambda p: p["streams"][0].update(quota=0), "quota"),
        (lambda p: p.update(maxSteps=0), "maxSteps"),
        (lambda p: p.update(seed=-1), "seed"),
        (lambda p: p["streams"][0].update(epochs=2**53 - 1), "2\\*\\*53"),
        (lambda p: p["streams"][0].update(phase=1), "phase 1 is not below 1"),
        (lambda p: p["streams"][0].pop("phase"), "phase"),
        (lambda p: p.pop("order"), "order"),
        (lambda p: p.update(shuffle=True), "shuffle"),
        (lambda p: p.update(order={"block": 3, "window": 2}), "window of 2 rows holds no block of"),
        (lambda p: p.update(order={"block": 0, "window": 2}), "order.block"),
    ],
)
def test_inconsistent_plans_are_refused(change: Any, says: str) -> None:
    first, second = sorted(("s", "t"), key=lambda name: canonical_json.sha256(name.encode()))
    value = make_plan(stream(first, {"a": 3, "b": 4}), stream(second, {"d": 2, "e": 1})).to_json()
    change(value)
    with pytest.raises(Malformed, match=says):
        BatchPlan.from_json(value)


def customers(count: int, every: int, *, beside: int = 0) -> BatchPlan:
    """One stream for each of ``count`` customers, and others of another profile."""
    routes = {
        f"customer-{i}": (canonical_json.sha256(b"%d" % i), "removable") for i in range(count)
    }
    routes |= {f"other-{i}": (canonical_json.sha256(b"o%d" % i), "other") for i in range(beside)}
    streams = plan_streams(
        routes,
        dict.fromkeys(routes, 40),
        rows_per_step={"removable": 2, "other": 1},
        every={"removable": every, "other": 3},
    )
    return make_plan(*streams, max_steps=10 * every)


@few
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 5))
def test_other_streams_move_none(count: int, every: int, beside: int) -> None:
    alone, crowded = customers(count, every), customers(count, every, beside=beside)
    mine = {s.id for s in alone.streams}
    assert alone.streams == tuple(s for s in crowded.streams if s.id in mine)
    for step in range(alone.max_steps):
        reading = {i: rows for i, rows in crowded.rows(step).items() if i in mine}
        assert alone.rows(step) == reading


def test_a_step_costs_what_it_reads_not_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = customers(300, 100)
    asked: list[str] = []
    positions = StreamPlan.positions

    def counted(self: StreamPlan, step: int) -> range:
        asked.append(self.id)
        return positions(self, step)

    monkeypatch.setattr(StreamPlan, "positions", counted)
    found = plan.positions(57)
    assert sorted(found) == sorted(asked) == list(found)


def test_equal_routes_share_a_stream() -> None:
    wide, narrow = canonical_json.sha256(b"wide"), canonical_json.sha256(b"narrow")
    streams = plan_streams(
        {"b": (wide, "everything"), "a": (wide, "everything"), "c": (narrow, "upper_half")},
        {"a": 5, "b": 6, "c": 7},
        rows_per_step={"everything": 14, "upper_half": 1},
        every={"upper_half": 2},
    )
    found = {s.id: s for s in streams}
    assert [s.id for s in streams] == sorted([wide, narrow])
    assert [(c.corpus, c.rows) for c in found[wide].corpora] == [("a", 5), ("b", 6)]
    assert (found[wide].quota, found[wide].every) == (14, 1)
    assert (found[narrow].quota, found[narrow].every) == (1, 2)


def test_profiles_that_share_a_route_must_be_read_alike() -> None:
    streams = {"a": (ZERO, "one"), "b": (ZERO, "two")}
    with pytest.raises(UsageError, match="one, two"):
        plan_streams(streams, {"a": 1, "b": 1}, rows_per_step={"one": 1, "two": 2})
    [shared] = plan_streams(streams, {"a": 1, "b": 1}, rows_per_step={"one": 2, "two": 2})
    assert shared.profile == "one"
