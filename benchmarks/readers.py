"""Ways to read a prepared folder: ours by two sources, Ray Data's own, and pyarrow alone.

The folder is on a disk or on an object store; each way reads either. Nothing is kept from one
reading to the next, in no process.

Each is a function from a `Prepared` folder and a number of steps to the tokens read. All yield
batches of token ids with ``ROWS`` rows. Only ours verify what they read, follow the plan's order
and know each row's corpus.

``pyarrow`` reads the shards from start to end and hashes nothing. ``pyarrow_plan`` reads the plan's
rows in the plan's order, with a cache of row groups like ours: what the order alone costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
import torch
from pyarrow import fs

from benchmarks.one_corpus import CORPUS
from govray.data import arrow_rows
from govray.data.arrow_rows import GroupCache
from govray.data.shard_file import Rows, ShardFile, rows_per_group
from govray.data.step_reader import StepReader, planned_rows
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.record.row_order import RowOrder
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.worker.planned_shard import PlannedRows

ROWS = 64
"""Rows of a step."""
BYTES = 2
"""Of a token on disk: the byte vocabulary fits into 16 bits."""
_CACHED = 512
_KEPT = 1 << 25
"""Bytes of decoded row groups that ours keep: a quarter of 64 MB of text."""
WHOLE = RowOrder(block=1, window=1 << 40)
"""Every epoch is one window, and so shuffled as a whole."""


@dataclass(frozen=True)
class Prepared:
    """What all of them read.

    Attributes:
        folder: The shards.
        manifest: What is in them.
        plan: One stream over one corpus, ``ROWS`` rows a step.
    """

    folder: Place
    manifest: Manifest
    plan: BatchPlan

    @property
    def shards(self) -> list[str]:
        """Paths of the Parquet files, in order, as ``filesystem`` knows them."""
        paths = [self.folder / part.file for part in self.manifest.corpus(CORPUS).parts]
        return [
            f"{urlsplit(path.bucket).netloc}/{path.key}"
            if isinstance(path, BucketPath)
            else str(path)
            for path in paths
        ]

    @property
    def filesystem(self) -> fs.FileSystem | None:
        """pyarrow's own, where the folder is on a store."""
        if isinstance(self.folder, BucketPath):
            return fs.FileSystem.from_uri(self.folder.bucket)[0]
        return None

    def open(self, shard: str) -> pq.ParquetFile:
        """One of ``shards`` in the way that pyarrow reads it fastest."""
        if store := self.filesystem:
            return pq.ParquetFile(shard, filesystem=store, pre_buffer=True)
        return pq.ParquetFile(shard, memory_map=True)

    @property
    def row_tokens(self) -> int:
        """Tokens of a full row."""
        return self.manifest.context + 1

    def reader(self, world: int = 1) -> StepReader:
        """The first rank of ``world``."""
        return StepReader(self.folder, self.manifest, self.plan, rank=0, world=world)

    def read(self, steps: int, world: int = 1) -> int:
        """Tokens that the first rank of ``world`` reads, in this process.

        It has decoded nothing so far, and keeps fewer row groups than there are: data are larger
        than memory.
        """
        arrow_rows.forget()
        with patch.object(arrow_rows, "DECODED", GroupCache(_KEPT)):
            windows = self.reader(world).windows(0, steps)
            return sum(int(rows.lengths.sum()) for window in windows for rows in window)

    def in_whole_order(self) -> Prepared:
        """The same data by a plan whose every epoch is one window."""
        fields = {name: getattr(self.plan, name) for name in BatchPlan.model_fields}
        return replace(self, plan=BatchPlan(**fields | {"order": WHOLE}))


def governed_local(prepared: Prepared, steps: int) -> int:
    """`StepReader.windows` in this process, as a worker reads."""
    return prepared.read(steps)


def governed_ranges(prepared: Prepared, steps: int) -> int:
    """The same as of data too large to fetch whole: a request for neighbouring row groups."""
    with patch.object(arrow_rows, "WHOLE_BYTES", 0):
        return governed_local(prepared, steps)


def governed_whole(prepared: Prepared, steps: int) -> int:
    """The same by a plan whose every epoch is one window."""
    return governed_local(prepared.in_whole_order(), steps)


def governed_ray(prepared: Prepared, steps: int) -> int:
    """A run's shard in Ray Data tasks."""
    reader = _FirstReader(prepared.folder, prepared.manifest, prepared.plan, rank=0, world=1)
    shard = PlannedRows(0, None, 1, steps, reader, by="ray_data")
    return sum(int(rows.lengths.sum()) for rows in shard.steps())


_readings: set[bytes] = set()


class _FirstReader(StepReader):
    """By a process that keeps nothing of an earlier reading."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading = os.urandom(8)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._reading not in _readings:
            _readings.add(self._reading)
            arrow_rows.forget()


def iter_torch_batches(prepared: Prepared, steps: int) -> int:
    """Ray Data's own loader over the same files, in file order, decoded to tensors."""

    def decode(table: pa.Table) -> dict[str, npt.NDArray[np.int32]]:
        return {"tokens": np.stack(_rows(table, prepared.row_tokens))}

    dataset = ray.data.read_parquet(prepared.shards, filesystem=prepared.filesystem).map_batches(
        decode, batch_size=ROWS, batch_format="pyarrow", num_cpus=0.5
    )
    dataset.context.execution_options.preserve_order = True
    read = 0
    for step, batch in enumerate(dataset.iter_torch_batches(batch_size=ROWS), start=1):
        read += int(batch["tokens"].numel())
        if step == steps:
            break
    return read


def pyarrow(prepared: Prepared, steps: int) -> int:
    """pyarrow alone, from the start of the first file on."""
    read = 0
    for step, batch in enumerate(_sequential(prepared), start=1):
        read += batch.numel()
        if step == steps:
            break
    return read


def pyarrow_plan(prepared: Prepared, steps: int) -> int:
    """pyarrow alone, the same rows in the same order as ours; nothing is verified."""
    files = [prepared.open(path) for path in prepared.shards]
    groups = [
        (file, group, file.metadata.row_group(group).num_rows)
        for file in files
        for group in range(file.metadata.num_row_groups)
    ]
    stops = np.cumsum([rows for _, _, rows in groups])

    @lru_cache(maxsize=_CACHED)
    def decoded(index: int) -> pa.ChunkedArray:
        file, group, _ = groups[index]
        return file.read_row_group(group, use_threads=False).column("tokens")

    [stream] = prepared.plan.streams
    read = 0
    for step in range(steps):
        rows = []
        for _, _, row in planned_rows(prepared.plan, stream.id, stream.positions(step)):
            index = int(np.searchsorted(stops, row, side="right"))
            first = int(stops[index - 1]) if index else 0
            rows.append(np.frombuffer(decoded(index)[row - first].as_buffer(), "<u2"))
        read += torch.from_numpy(np.concatenate(rows).astype(np.int64)).numel()
    return read


def decodings(prepared: Prepared, steps: int, world: int) -> float:
    """How often the first rank decodes a row group, for each that ``steps`` steps would fill."""
    decoded = 0
    read = ShardFile.read

    def counted(file: ShardFile, group: int, digest: str, dtype: Any) -> Rows:
        nonlocal decoded
        decoded += 1
        return read(file, group, digest, dtype)

    with patch.object(ShardFile, "read", counted):
        prepared.read(steps, world)
    return decoded / (steps * ROWS / rows_per_group(prepared.manifest.context))


READERS: Mapping[str, Callable[[Prepared, int], int]] = {
    "pyarrow": pyarrow,
    "pyarrow_plan": pyarrow_plan,
    "governed_local": governed_local,
    "governed_whole": governed_whole,
    "governed_ray": governed_ray,
    "iter_torch_batches": iter_torch_batches,
}


STORE_READERS: Mapping[str, Callable[[Prepared, int], int]] = {
    "pyarrow": pyarrow,
    "governed_local": governed_local,
    "governed_ray": governed_ray,
    "iter_torch_batches": iter_torch_batches,
}
"""Without those that ask for row groups one by one: see `governed_ranges`."""


def _sequential(prepared: Prepared) -> Iterator[torch.Tensor]:
    for path in prepared.shards:
        file = prepared.open(path)
        for batch in file.iter_batches(batch_size=ROWS, use_threads=False):
            rows = _rows(pa.Table.from_batches([batch]), prepared.row_tokens)
            yield torch.from_numpy(np.stack(rows).astype(np.int64))


def _rows(table: pa.Table, row_tokens: int) -> list[npt.NDArray[np.int32]]:
    """Full rows; the short last row of a part is padded."""
    rows = []
    for value in table.column("tokens"):
        row = np.zeros(row_tokens, dtype=np.int32)
        ids = np.frombuffer(value.as_buffer(), "<u2")
        row[: len(ids)] = ids
        rows.append(row)
    return rows
