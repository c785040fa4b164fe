"""Each rank's planned, ordered, resumable shard, as `get_dataset_shard` gives it.

`PlanData.configure` is called at every start of the worker group. It resolves, once for all ranks,
where the run resumes. The answer travels with the shards, so no worker can resume elsewhere. Ray
Train would call it in a new process for each worker group, which imports everything again while all
ranks wait. `Configured` calls it in Ray's controller, where it takes milliseconds. The order of
rows comes from the batch plan alone: a source reads and decodes, it never decides.

A shard has two sources that give the same bytes. Each worker takes the nearer, unless the
experiment names one (``data.reader``):

* The prepared folder, if this node can read it: some steps ahead, in a thread of the worker. A
  disk's shards are memory-mapped; a store's row groups are fetched several at a time.
* Ray Data otherwise: tasks read on nodes that can. It is the second choice, because its executor is
  a process for each rank that uses much of a CPU throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray.data
import ray.train
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback

from govray.data.prefetch import prefetched
from govray.data.prepared.task_reader import TaskReader
from govray.data.step_reader import StepReader, StepRows, plan_items, step_rows
from govray.storage.place import place
from govray.train.checkpoint.commit_folder import Folder
from govray.train.inputs.experiment_config import Reader
from govray.train.inputs.gating import UNDECIDED, Decisions
from govray.train.inputs.order import Order
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.run_lock import begin_attempt
from govray.train.state import resume_point

DATASET = "train"
WINDOWS_AHEAD = 1
"""Windows that wait, while another one is being read."""
ROWS_PER_BLOCK = 1024
"""About how many rows one Ray Data task reads at least: a task alone costs tens of milliseconds."""
READ_CPUS = 0.5
"""CPUs a read task reserves; workers and readers must fit into the cluster together."""


@dataclass(frozen=True)
class PlannedRows:
    """One rank's rows of every remaining step, in order. Picklable.

    Attributes:
        start_step: The first step to run.
        checkpoint: The commit that holds the state before that step, if any.
        attempt: Number of the attempt, which the fence compares.
        stop_step: The first step not to run.
        decisions: Earlier decisions; resolved with the step, once for all ranks.
        by: Who reads; None for the worker if it can.
    """

    start_step: int
    checkpoint: Folder | None
    attempt: int
    stop_step: int
    reader: StepReader
    decisions: Decisions = UNDECIDED
    by: Reader | None = None

    def __iter__(self) -> Iterator[StepRows]:
        here = self.reader.readable_here if self.by is None else self.by == "worker"
        return iter(self.here() if here else self.through_ray_data())

    def here(self) -> Iterator[StepRows]:
        """Read by this process."""
        for window in prefetched(
            self.reader.windows(self.start_step, self.stop_step), WINDOWS_AHEAD
        ):
            yield from window

    def through_ray_data(self) -> Iterator[StepRows]:
        """Read by tasks somewhere on the cluster."""
        items = plan_items(self.reader.plan, self.start_step)[: self.stop_step - self.start_step]
        if not items:
            return
        rows = sum(stream.quota for stream in self.reader.plan.streams)
        # A task decodes the row groups of each window of the order that its steps touch.
        order = self.reader.plan.order
        together = max(ROWS_PER_BLOCK * self.reader.world, order.window if order else 0)
        steps = max(1, together // rows)
        dataset = ray.data.from_items(
            items, override_num_blocks=-(-len(items) // steps)
        ).map_batches(
            TaskReader(self.reader), batch_size=None, batch_format="pyarrow", num_cpus=READ_CPUS
        )
        dataset.context.execution_options.preserve_order = True
        # A split of one runs Ray Data's executor in a process of its own. Here it would share the
        # interpreter lock with the training loop and slow every step down.
        [iterator] = dataset.streaming_split(1)
        for batch in iterator.iter_batches(batch_size=1, batch_format="pyarrow"):
            yield from step_rows(batch)


class PlanData(ray.train.DataConfig):
    """Hands rank r of w the slices that the batch plan gives it."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def configure(  # type: ignore[override] # no Ray Data is in it
        self, datasets: Any, world_size: int, worker_handles: Any, worker_node_ids: Any, **_: Any
    ) -> list[dict[str, PlannedRows]]:
        """One `PlannedRows` for each rank; the base class documents the arguments."""
        order = self._order
        folder = place(order.folder)
        attempt = begin_attempt(folder, order.driver).attempt
        resumption = resume_point.resolve(folder, order)
        checkpoint, start = resumption.checkpoint, resumption.step
        events.append(
            folder,
            events.AttemptStarted(at=now(), attempt=attempt, world_size=world_size, step=start),
        )
        prepared = place(order.prepared)
        return [
            {
                DATASET: PlannedRows(
                    start,
                    checkpoint,
                    attempt,
                    order.stop,
                    StepReader(prepared, order.manifest, order.plan, rank=rank, world=world_size),
                    resumption.decisions,
                    order.reader,
                )
            }
            for rank in range(world_size)
        ]


class Configured(DatasetsCallback):
    """Ray's callback, which configures in its own process. Source: `DatasetsCallback` of Ray 2.60,
    which is private; a test compares what is used here with the installed Ray."""

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        """Called by Ray's controller when the workers are there: what each one gets."""
        try:
            shares: Any = self._data_config.configure(
                {}, len(workers), None, [worker.metadata.node_id for worker in workers]
            )
        except Exception as error:
            dealt = [Dealt(failure=error)] * len(workers)
        else:
            dealt = [Dealt(shards=share) for share in shares]
        return {"dataset_shard_provider": dealt}


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """What `ray.train.get_dataset_shard` finds on one worker: its shards, or why there are none.
    A failure is raised on every worker, so that it counts like any failure of theirs."""

    shards: Mapping[str, PlannedRows] = field(default_factory=dict)
    failure: Exception | None = None

    def get_dataset_shard(self, dataset_info: Any) -> PlannedRows:
        """Called by Ray on the worker."""
        if self.failure is not None:
            raise self.failure
        return self.shards[dataset_info.dataset_name]
