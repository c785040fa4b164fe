"""A credential partition as a Ray Data dataset: the plan's rows of one corpus, read by tasks.

One row of the dataset is one planned row, so Ray Data's statistics count planned rows. Tasks read
and decode. The plan says which row belongs where, and `in_plan_order` puts the rows of all
partitions there.

A store's shards that are small enough are fetched once for all. A task that fetched them itself
would do so in each process that runs one. So one task of Ray fetches a shard into Ray's object
store, from which the processes of a node read it in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
from ray.data import Dataset, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata

from govray.data import arrow_rows
from govray.data.prepared.object_ranges import ObjectRanges
from govray.data.step_reader import StepReader, StepRows, Unread, Window
from govray.errors import Refused
from govray.storage.bucket_path import BucketPath

ROWS_PER_BLOCK = 1024
"""About how many rows a rank's tasks read together at least: a task costs tens of milliseconds."""
READ_CPUS = 0.5
"""CPUs a task reserves; workers and readers must fit into the cluster together."""

_KEY = ("step", "stream", "corpus", "position")
"""What names a planned row; stream and corpus are numbers in the plan's."""

SCHEMA = pa.schema(
    [(name, pa.int64()) for name in _KEY]
    + [
        ("length", pa.int64()),
        ("tokens", pa.large_binary()),
        ("error", pa.string()),
        ("refused", pa.bool_()),
    ]
)
"""How a planned row travels; ``tokens`` are little-endian uint32."""

Lent = Any
"""A reader in Ray's object store, and where to find the shards that were fetched for all."""


def lend(reader: StepReader, *, fetch: bool) -> Lent:
    """Put a reader where tasks find it.
    ``fetch``: start to fetch for all what is fetched whole."""
    paths = reader.whole_objects if fetch else ()
    shards = {path: _fetched.options(num_cpus=READ_CPUS).remote(path) for path in paths}
    return ray.put((reader, shards))


def read_together(reader: StepReader, start: int, stop: int) -> list[range]:
    """The steps from ``start`` to ``stop``, cut into what the tasks of all partitions read
    together."""
    rows = sum(stream.quota for stream in reader.plan.streams)
    # A task decodes the row groups of each window of the order that its steps touch.
    order = reader.plan.order
    together = max(ROWS_PER_BLOCK * reader.world, order.window if order else 0)
    steps = max(1, together // rows)
    return [range(first, min(first + steps, stop)) for first in range(start, stop, steps)]


def partition(lent: Lent, corpus: str, windows: Sequence[range]) -> Dataset:
    """The reader's rows of one corpus, as a lazy dataset: nothing is read before it is."""
    made = read_datasource(
        _Planned(lent, corpus, windows), num_cpus=READ_CPUS, override_num_blocks=len(windows)
    )
    made.set_name(corpus)
    return made


class _Planned(Datasource):
    """A block for each window, empty or not, so that partitions go on together."""

    def __init__(self, lent: Lent, corpus: str, windows: Sequence[range]) -> None:
        super().__init__()
        self._lent = lent
        self._corpus = corpus
        self._windows = windows

    def get_name(self) -> str:
        """Behind "Read", the operator's name in the dashboard."""
        return f"Planned({self._corpus})"

    def estimate_inmemory_data_size(self) -> None:
        """Unknown."""

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
        """One for each window, whatever Ray asks for."""
        unknown = BlockMetadata(None, None, None, None)
        return [
            ReadTask(partial(_read, self._lent, self._corpus, steps), unknown, SCHEMA)
            for steps in self._windows
        ]


def _read(lent: Lent, corpus: str, steps: range) -> list[pa.Table]:
    reader, shards = ray.get(lent)
    for path, fetched in shards.items():
        if not arrow_rows.is_open(path) and (data := ray.get(fetched)) is not None:
            arrow_rows.open_bytes(path, pa.py_buffer(data))
    return [encoded(reader.of(corpus).window(steps))]


def encoded(window: Window) -> pa.Table:
    """A window's rows as they travel."""
    unread = [window.unread.get(row) for row in range(window.lengths.size)]
    return pa.table(
        [
            np.repeat(window.steps, np.diff(window.bounds)),
            window.streams,
            window.corpora,
            window.positions,
            window.lengths,
            [row.tobytes() for row in window.tokens.astype("<u4")],
            [why and why.what for why in unread],
            [why is not None and why.refused for why in unread],
        ],
        schema=SCHEMA,
    )


def in_plan_order(
    reader: StepReader, windows: Sequence[range], blocks: Iterable[pa.Table]
) -> Iterator[list[StepRows]]:
    """Each window's steps, once all its rows are there.

    Args:
        reader: Of all partitions.
        blocks: Rows of the partitions as they travel; best window by window.

    Raises:
        Refused: A row came twice, is missing, or is not planned.
    """
    begun: dict[int, _Gathered] = {}
    blocks = iter(blocks)
    for number, steps in enumerate(windows):
        due = begun.pop(number, None) or _Gathered(reader.planned(steps))
        while due.missing:
            block = next(blocks, None)
            if block is None:
                raise Refused(f"Ray Data dealt {due.missing} rows too few", where=f"{steps}")
            owners = (block["step"].to_numpy() - windows[0].start) // len(windows[0])
            for owner in np.unique(owners).tolist():
                if not number <= owner < len(windows):
                    raise _unplanned(f"{steps}")
                if owner != number and owner not in begun:
                    begun[owner] = _Gathered(reader.planned(windows[owner]))
                here = due if owner == number else begun[owner]
                here.take(block.filter(pa.array(owners == owner)))
        yield reader.step_rows(due.window)
    if any(block.num_rows for block in blocks):
        raise _unplanned("the end of the run")


class _Gathered:
    """A window of which some rows are there."""

    def __init__(self, window: Window) -> None:
        self.window = window
        steps = np.repeat(window.steps, np.diff(window.bounds))
        keys = zip(steps, window.streams, window.corpora, window.positions, strict=True)
        self._due = {tuple(map(int, key)): row for row, key in enumerate(keys)}

    @property
    def missing(self) -> int:
        """Rows that are not there yet."""
        return len(self._due)

    def take(self, block: pa.Table) -> None:
        """Put rows where the plan has them."""
        for found in block.to_pylist():
            row = self._due.pop(tuple(found[name] for name in _KEY), None)
            if row is None:
                raise _unplanned(f"step {found['step']}, position {found['position']}")
            if found["error"] is not None:
                self.window.unread[row] = Unread(found["error"], found["refused"])
            self.window.lengths[row] = found["length"]
            self.window.tokens[row] = np.frombuffer(found["tokens"], "<u4")


def _unplanned(where: str) -> Refused:
    return Refused("Ray Data dealt a row twice, or one that is not planned", where=where)


@ray.remote
def _fetched(path: str) -> npt.NDArray[np.uint8] | None:
    """An object's bytes ``[n]``; None if the store does not give them: who reads them says why."""
    try:
        return np.frombuffer(ObjectRanges(BucketPath.parse(path)).fetch_all(), np.uint8)
    except OSError:
        return None
