"""Each rank's planned, ordered, resumable shard, as `ray.train.get_dataset_shard` gives it.

The trainer gets one lazy dataset of Ray Data for each credential partition: the plan's rows of one
corpus. `PlanData` deals each rank its slice of each, under the corpus's name, and of all together
under ``train``. A shard is a `ray.data.DataIterator`. A run reads ``train``, step by step.

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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray.data
import ray.train
from ray.data import DataContext, DataIterator, Dataset, Schema
from ray.data._internal.execution.interfaces.ref_bundle import BlockEntry, RefBundle
from ray.data._internal.stats import DatasetStats
from ray.data.block import BlockAccessor
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback

from govray.data.prefetch import prefetched
from govray.data.prepared import partition
from govray.data.step_reader import StepReader, StepRows
from govray.errors import InfrastructureFailed, Refused, UsageError
from govray.storage.place import place
from govray.train.checkpoint.commit_folder import Folder
from govray.train.inputs.experiment_config import Reader
from govray.train.inputs.gating import UNDECIDED, Decisions
from govray.train.inputs.order import Order
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.run_lock import begin_attempt
from govray.train.state import resume_point
from govray.train.worker.planned_batch import row_tensors

DATASET = "train"
"""All partitions together, in the plan's order; also of a run that has a corpus of this name."""
WINDOWS_AHEAD = 1
"""Windows that wait, while another one is being read."""


def partitions(order: Order) -> dict[str, Dataset]:
    """A run's rows as lazy datasets, by corpus. No task starts before one of them is read."""
    reader = _reader(order)
    lent = partition.lend(reader, fetch=False)
    windows = partition.read_together(reader, 0, order.stop)
    return {corpus: partition.partition(lent, corpus, windows) for corpus in reader.corpora}


def _reader(order: Order, rank: int = 0, world: int = 1) -> StepReader:
    prepared = place(order.prepared)
    return StepReader(prepared, order.manifest, order.plan, rank=rank, world=world)


@dataclass(eq=False)
class PlannedRows(DataIterator):
    """One rank's rows of every remaining step, in order. Picklable before it is read.

    Its batches have a row's tensors by name, as a loss function gets them, and its ``step``.

    Attributes:
        start_step: The first step to run.
        checkpoint: The commit that holds the state before that step, if any.
        attempt: Number of the attempt, which the fence compares.
        stop_step: The first step not to run.
        decisions: Earlier decisions; resolved with the step, once for all ranks.
        by: Who reads; None for the worker if it can.

    Source: `ray.data.DataIterator` of Ray 2.60, whose abstract methods are these.
    """

    start_step: int
    checkpoint: Folder | None
    attempt: int
    stop_step: int
    reader: StepReader
    decisions: Decisions = UNDECIDED
    by: Reader | None = None
    _split: Any = field(default=None, init=False)
    _stats: DatasetStats = field(
        default_factory=lambda: DatasetStats(metadata={}, parent=None), init=False
    )

    def of(self, corpus: str) -> PlannedRows:
        """The rows of one credential partition."""
        return replace(self, reader=self.reader.of(corpus))

    def steps(self) -> Iterator[StepRows]:
        """The rows, step by step: what a run reads."""
        for window in self._windows():
            yield from window

    def _windows(self) -> Iterator[list[StepRows]]:
        here = self.reader.readable_here if self.by is None else self.by == "worker"
        if here:
            windows = self.reader.windows(self.start_step, self.stop_step)
            return prefetched(windows, WINDOWS_AHEAD)
        return self._through_ray_data()

    def _through_ray_data(self) -> Iterator[list[StepRows]]:
        """Read by tasks somewhere on the cluster."""
        windows = partition.read_together(self.reader, self.start_step, self.stop_step)
        blocks = self._blocks(windows) if windows and self.reader.corpora else ()
        return partition.in_plan_order(self.reader, windows, blocks)

    def _blocks(self, windows: list[range]) -> Iterable[Any]:
        """The rows of all partitions, by one execution of Ray Data."""
        lent = partition.lend(self.reader, fetch=True)
        first, *others = (
            partition.partition(lent, corpus, windows) for corpus in self.reader.corpora
        )
        # In a kept order, a union takes a block of each in turn.
        dataset = first.union(*others) if others else first
        dataset.context.execution_options.preserve_order = True
        # A split of one runs Ray Data's executor in a process of its own. Here it would share the
        # interpreter lock with the training loop and slow every step down.
        [self._split] = dataset.streaming_split(1)
        blocks: Iterable[Any] = self._split.iter_batches(batch_size=None, batch_format="pyarrow")
        return blocks

    def _to_ref_bundle_iterator(self) -> tuple[Iterator[RefBundle], DatasetStats, None]:
        return map(self._bundle, self._windows()), self._stats, None

    def _bundle(self, window: list[StepRows]) -> RefBundle:
        block = self._block(window)
        put: Any = ray.put(block)
        entry = BlockEntry(put, BlockAccessor.for_block(block).get_metadata())
        return RefBundle((entry,), schema=block.schema, owns_blocks=True)

    def _block(self, window: list[StepRows]) -> Any:
        """A table of Arrow."""
        for rows in window:
            if rows.error is not None:
                raise (Refused if rows.refused else InfrastructureFailed)(rows.error)
        counts = [len(rows.lengths) for rows in window]
        whole = replace(
            window[0],
            tokens=np.concatenate([rows.tokens for rows in window]),
            lengths=np.concatenate([rows.lengths for rows in window]),
        )
        tensors, _ = row_tensors(whole, self.reader.row_schema)
        named = {name: each.numpy() for name, each in tensors.items()}
        steps = np.repeat([rows.step for rows in window], counts)
        return BlockAccessor.batch_to_block({"step": steps, **named})

    def schema(self) -> Schema:
        """The columns of a batch."""
        none, width = np.zeros(0, np.int64), self.reader.width
        empty = StepRows(0, np.zeros((0, width), np.uint32), none, (), none, ())
        return Schema(self._block([empty]).schema)

    def stats(self) -> str:
        """What Ray Data counted when the shard was last read through it, else of batches alone."""
        if self._split is not None:
            return str(self._split.stats())
        return str(self._stats.to_summary().to_string())

    def get_context(self) -> DataContext:
        """This process's."""
        return DataContext.get_current()


class PlanData(ray.train.DataConfig):
    """Hands rank r of w the slices that the batch plan gives it."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def configure(  # type: ignore[override] # what is dealt is planned
        self, datasets: Any, world_size: int, worker_handles: Any, worker_node_ids: Any, **_: Any
    ) -> list[dict[str, PlannedRows]]:
        """Each rank's `PlannedRows`, by dataset; the base class documents the arguments."""
        order = self._order
        folder = place(order.folder)
        attempt = begin_attempt(folder, order.driver).attempt
        resumption = resume_point.resolve(folder, order)
        checkpoint, start = resumption.checkpoint, resumption.step
        events.append(
            folder,
            events.AttemptStarted(at=now(), attempt=attempt, world_size=world_size, step=start),
        )
        dealt = []
        for rank in range(world_size):
            rows = PlannedRows(
                start,
                checkpoint,
                attempt,
                order.stop,
                _reader(order, rank, world_size),
                resumption.decisions,
                order.experiment.data.reader,
            )
            dealt.append({**{corpus: rows.of(corpus) for corpus in datasets}, DATASET: rows})
        return dealt


class Configured(DatasetsCallback):
    """Ray's callback, which configures in its own process. Source: `DatasetsCallback` of Ray 2.60,
    which is private; a test compares what is used here with the installed Ray."""

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        """Called by Ray's controller when the workers are there: what each one gets."""
        try:
            shares: Any = self._data_config.configure(
                self._datasets, len(workers), None, [worker.metadata.node_id for worker in workers]
            )
        except Exception as error:
            dealt = [Dealt(failure=error)] * len(workers)
        else:
            dealt = [Dealt(shards=share) for share in shares]
        return {"dataset_shard_provider": dealt}


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """What `ray.train.get_dataset_shard` finds on one worker: its shards, or why it has none.
    A failure is raised on every worker, so that it counts like any failure of theirs."""

    shards: Mapping[str, PlannedRows] = field(default_factory=dict)
    failure: Exception | None = None

    def get_dataset_shard(self, dataset_info: Any) -> PlannedRows:
        """Called by Ray on the worker."""
        if self.failure is not None:
            raise self.failure
        shard = self.shards.get(dataset_info.dataset_name)
        if shard is None:
            raise UsageError(
                f"there is no dataset {dataset_info.dataset_name}",
                where="ray.train.get_dataset_shard()",
                do=f"Ask for one of {', '.join(sorted(self.shards))}",
            )
        return shard
