"""What is written of a running entry that gives slots back, or gets them again.

The entry that they are for may be of a project that others do not see. So what is said to all does
not name it. ``gives_to`` does, for those who see it.
"""

from __future__ import annotations

from typing import Any

from govray.platform.queue.giving_way import Holding
from govray.platform.queue.queue_order import Gift
from govray.platform.store.queue_entries import slots_held
from govray.platform.store.states import ExperimentState
from govray.platform.store.tables import QueueEntry

Changes = dict[str, Any]


def gives(row: QueueEntry) -> bool:
    """Whether it was told to give slots back, and has not."""
    return row.cap is not None and slots_held(row) > row.cap


def asked(row: QueueEntry, gift: Gift, *, at: str) -> Changes:
    """It is told to keep fewer slots, and holds what it has until its run has answered."""
    return {
        "cap": gift.keeps,
        "cap_number": row.cap_number + 1,
        "capped": at,
        "gives_to": gift.to,
        "held": slots_held(row),
        "why": _why(row, "gives", gift.keeps),
    }


def given(row: QueueEntry) -> Changes:
    """Its run has answered that it keeps no more."""
    assert row.cap is not None
    return {"held": row.cap, "why": _why(row, "gave", row.cap)}


def given_again(row: QueueEntry, slots: int) -> Changes:
    """It holds so many slots from now on, before its run knows."""
    changes = {"cap": slots, "cap_number": row.cap_number + 1, "held": slots}
    if slots < row.slots:
        return {**changes, "why": _why(row, "gave", slots)}
    return {**changes, "cap": None, "held": None, "capped": None, "gives_to": None, "why": None}


def holding(row: QueueEntry, *, shrinks: bool, late: bool) -> Holding:
    """An entry that holds slots, as the order sees it.

    Args:
        shrinks: Whether its run can be told to give slots back.
        late: Whether it was told, and takes too long. Then it can only be preempted.
    """
    return Holding(
        id=row.id,
        project=row.project,
        pool=row.pool,
        priority=row.priority,
        slots=slots_held(row),
        started=(row.started or "", row.id),
        leaving=row.state is not ExperimentState.RUNNING,
        least=row.least if shrinks and not late else None,
        full=row.slots,
        cap=None if late else row.cap,
    )


def _why(row: QueueEntry, verb: str, keeps: int) -> str:
    return f"it {verb} back {row.slots - keeps} of {row.slots} slots to a higher priority"
