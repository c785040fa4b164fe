"""What a plan's author is told about quotas that many streams share, and the order of new plans."""

from __future__ import annotations

import pytest

from govray.data.shard_file import rows_per_group
from govray.errors import UsageError
from govray.governance.formats import canonical_json
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.row_order import RowOrder
from govray.train.inputs.planning import (
    WINDOW_TOKENS,
    advice,
    last_read,
    local_order,
    refuse_short_data,
)


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


def reads(*streams: tuple[int, int, int], max_steps: int, epochs: int = 1) -> BatchPlan:
    """A plan of streams of (rows, quota, every), the first of corpus a, the next of b."""
    corpora = dict(zip("abcdef", streams, strict=False))
    return BatchPlan(
        seed=1,
        max_steps=max_steps,
        manifest=canonical_json.sha256(b""),
        context=8,
        order=RowOrder(block=1, window=1 << 20),
        streams=plan_streams(
            {name: (canonical_json.sha256(name.encode()), name) for name in corpora},
            {name: rows for name, (rows, _, _) in corpora.items()},
            rows_per_step={name: quota for name, (_, quota, _) in corpora.items()},
            every={name: every for name, (_, _, every) in corpora.items()},
            epochs=dict.fromkeys(corpora, epochs),
        ),
    )


@pytest.mark.parametrize(
    ("streams", "epochs", "last", "enough"),
    [
        (((9, 2, 1),), 1, 4, 23),
        (((9, 2, 1), (3, 1, 1)), 2, 8, 23),  # the longest counts
        (((4, 2, 30),), 1, 49, 2),  # turns 19, 49 and then 79
        (((9, 2, 1), (4, 1, 400)), 1, 4, 23),  # the other's first turn is step 157
        (((9, 2, 1), (0, 1, 1)), 1, 4, 23),  # empty records, or all of them in the reserve
    ],
)  # fmt: skip
def test_data_that_end_before_the_run_are_refused_and_enough_epochs_are_enough(
    streams: tuple[tuple[int, int, int], ...], epochs: int, last: int, enough: int
) -> None:
    short = reads(*streams, max_steps=100, epochs=epochs)
    assert last_read(short) == last == max(step for step in range(100) if short.positions(step))
    with pytest.raises(UsageError) as refused:
        refuse_short_data(short)
    assert f"step {last} is the last with rows, and {99 - last} steps" in str(refused.value)
    assert refused.value.where == "max_steps: 100"
    assert f"max_steps: {last + 1}, or max_steps: data" in str(refused.value.do)
    assert f"epochs: {enough}" in str(refused.value.do)
    refuse_short_data(reads(*streams, max_steps=100, epochs=enough))
    with pytest.raises(UsageError):
        refuse_short_data(reads(*streams, max_steps=100, epochs=enough - 1))
    refuse_short_data(reads(*streams, max_steps=last + 1, epochs=epochs))
