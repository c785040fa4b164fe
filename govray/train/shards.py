"""Each rank's planned, ordered, resumable Ray Data shard.

Ray Train calls `PlanData.configure` at every start of the worker group. It
resolves, once for all ranks, where the run resumes; the answer travels with the
shards, so no worker can resume elsewhere. The order of rows comes from the batch
plan alone: Ray Data reads and decodes, it never decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.data
import ray.train

from govray.data.reader import StepReader, StepRows, plan_items, step_rows
from govray.train import events, gating, snapshot
from govray.train.clock import now
from govray.train.driver import begin_attempt
from govray.train.gating import UNDECIDED, Decisions
from govray.train.order import Order

DATASET = "train"
ROWS_PER_BLOCK = 1024
"""Rows read by one Ray Data task, about: a task costs some tens of milliseconds by itself."""
READ_CPUS = 0.5
"""CPUs a read task reserves; workers and readers must fit into the cluster together."""


@dataclass(frozen=True)
class PlannedRows:
    """One rank's rows of every remaining step, in order.

    Attributes:
        start_step: The first step to run.
        checkpoint: The commit that holds the state before that step, if any.
        attempt: Number of the attempt, which the fence compares.
        decisions: What was decided before; resolved with the step, once for all ranks.
    """

    start_step: int
    checkpoint: Path | None
    attempt: int
    _iterator: Any
    decisions: Decisions = UNDECIDED

    def __iter__(self) -> Iterator[StepRows]:
        if self._iterator is None:
            return
        for batch in self._iterator.iter_batches(batch_size=1, batch_format="pyarrow"):
            yield from step_rows(batch)


class PlanData(ray.train.DataConfig):
    """Hands rank r of w the slices that the batch plan gives it."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def configure(
        self, datasets: Any, world_size: int, worker_handles: Any, worker_node_ids: Any, **_: Any
    ) -> list[dict[str, PlannedRows]]:
        """One `PlannedRows` for each rank; the base class documents the arguments."""
        order = self._order
        folder = Path(order.folder)
        attempt = begin_attempt(folder, order.driver).attempt
        found = snapshot.latest(folder)
        checkpoint, start = found if found else (None, 0)
        decided = gating.resumed(folder, checkpoint).joined(order.decisions)
        events.append(
            folder,
            events.AttemptStarted(at=now(), attempt=attempt, world_size=world_size, step=start),
        )
        return [
            {
                DATASET: PlannedRows(
                    start, checkpoint, attempt, self._iterator(rank, world_size, start), decided
                )
            }
            for rank in range(world_size)
        ]

    def _iterator(self, rank: int, world: int, start: int) -> Any:
        order = self._order
        items = plan_items(order.plan, start)[: order.stop - start]
        if not items:
            return None
        reader = StepReader(
            Path(order.prepared), order.manifest, order.plan, rank=rank, world=world
        )
        rows = sum(stream.quota for stream in order.plan.streams)
        steps = max(1, ROWS_PER_BLOCK * world // rows)
        dataset = ray.data.from_items(
            items, override_num_blocks=-(-len(items) // steps)
        ).map_batches(reader.load, batch_size=None, batch_format="pyarrow", num_cpus=READ_CPUS)
        dataset.context.execution_options.preserve_order = True
        # A split of one runs Ray Data's executor in a process of its own. In this one it would
        # share the interpreter lock with the training loop, and slow every step down.
        [iterator] = dataset.streaming_split(1)
        return iterator


def placeholder() -> ray.data.Dataset:
    """Ray Train configures only datasets that it was given; `PlanData` ignores this one."""
    return ray.data.range(1)
