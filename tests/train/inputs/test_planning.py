"""What a plan's author is told about quotas that many streams share, and the order of new plans."""

from __future__ import annotations

import pytest

from govray.data.shard_file import rows_per_group
from govray.governance.formats import canonical_json
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.row_order import RowOrder
from govray.train.inputs.planning import MOST_DUE, WINDOW_TOKENS, advice, busiest, local_order


def plan(customers: int, every: int, max_steps: int = 2000, excluded: int = 0) -> BatchPlan:
    routes = {
        f"customer-{i:03d}": (canonical_json.sha256(b"%d" % i), "removable")
        for i in range(customers)
    }
    routes["open"] = (canonical_json.sha256(b"open"), "everything")
    return BatchPlan(
        seed=1,
        max_steps=max_steps,
        manifest=canonical_json.sha256(b""),
        context=8,
        excluded=tuple(f"customer-{i:03d}" for i in range(excluded)),
        order=RowOrder(block=1, window=1 << 20),
        streams=plan_streams(
            routes,
            dict.fromkeys(routes, 10),
            rows_per_step={"removable": 1, "everything": 4},
            every={"removable": every},
        ),
    )


def test_few_streams_need_no_advice() -> None:
    assert advice(plan(MOST_DUE, 1)) == ()
    assert advice(plan(300, 100)) == ()
    assert advice(plan(300, 1, excluded=300)) == ()


def test_many_streams_at_every_step_are_advised_against() -> None:
    [said] = advice(plan(300, 1))
    assert "300 of the 300 streams of profile 'removable' fall due on one step" in said
    every = int(said.partition("'every: ")[2].partition("'")[0])
    assert 300 / MOST_DUE < every < 60
    assert advice(plan(300, every)) == ()
    assert advice(plan(300, every - 1)) != ()


def test_the_count_is_the_plans() -> None:
    crowded = plan(200, 7)
    ids = [s.id for s in crowded.streams if s.profile == "removable"]
    loads = [len(set(crowded.positions(step)) & set(ids)) for step in range(7)]
    assert busiest(ids, 7) == max(loads)
    assert busiest([], 7) == 0


@pytest.mark.parametrize("steps", [5, 60])
def test_streams_whose_turn_never_comes_are_counted(steps: int) -> None:
    short = plan(300, 100, max_steps=steps)
    read = {stream for step in range(steps) for stream in short.positions(step)}
    [said] = advice(short)
    assert f"{301 - len(read)} of the 300 streams" in said
    assert "not read at all" in said


@pytest.mark.parametrize("context", [1, 8, 512, 2048, 8192, 1 << 15, 1 << 17])
def test_windows_hold_whole_blocks_of_whole_row_groups(context: int) -> None:
    order = local_order(context)
    assert order.block % rows_per_group(context) == 0
    assert order.window % order.block == 0
    least = max(2048, WINDOW_TOKENS // (context + 1))
    assert least <= order.window < least + order.block


def test_the_order_of_a_common_context() -> None:
    """The numbers that docs/streams.md has."""
    assert local_order(512) == RowOrder(block=126, window=8190)
