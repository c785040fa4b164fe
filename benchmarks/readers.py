"""Ways to read a prepared folder: ours by two sources, Ray Data's own, and pyarrow alone.

Nothing is kept from one reading to the next, in no process.

Each is a function from a `Prepared` folder and a number of steps to the tokens read. All yield
batches of token ids with ``ROWS`` rows. Only ours verify what they read, follow the plan's order
and know each row's corpus.

``pyarrow`` reads the shards from start to end and hashes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
import torch

from benchmarks.one_corpus import CORPUS
from govray.data import arrow_rows
from govray.data.arrow_rows import GroupCache
from govray.data.step_reader import StepReader
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.prepare_manifest import Manifest
from govray.train.worker.planned_shard import PlannedRows

ROWS = 64
"""Rows of a step."""
BYTES = 2
"""Of a token on disk: the byte vocabulary fits into 16 bits."""
_KEPT = 1 << 25
"""Bytes of decoded row groups that ours keep: a quarter of 64 MB of text."""


@dataclass(frozen=True)
class Prepared:
    """What all of them read.

    Attributes:
        folder: The shards.
        manifest: What is in them.
        plan: One stream over one corpus, ``ROWS`` rows a step.
    """

    folder: Path
    manifest: Manifest
    plan: BatchPlan

    @property
    def shards(self) -> list[str]:
        """Paths of the Parquet files, in order."""
        return [str(self.folder / part.file) for part in self.manifest.corpus(CORPUS).parts]

    @property
    def row_tokens(self) -> int:
        """Tokens of a full row."""
        return self.manifest.context + 1


def governed_local(prepared: Prepared, steps: int) -> int:
    """`StepReader.windows` in this process, as a worker reads.

    It has decoded nothing so far, and keeps fewer row groups than there are: data are larger than
    memory.
    """
    arrow_rows.forget()
    reader = StepReader(prepared.folder, prepared.manifest, prepared.plan, rank=0, world=1)
    with patch.object(arrow_rows, "DECODED", GroupCache(_KEPT)):
        windows = reader.windows(0, steps)
        return sum(int(rows.lengths.sum()) for window in windows for rows in window)


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

    dataset = ray.data.read_parquet(prepared.shards).map_batches(
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


READERS: Mapping[str, Callable[[Prepared, int], int]] = {
    "pyarrow": pyarrow,
    "governed_local": governed_local,
    "governed_ray": governed_ray,
    "iter_torch_batches": iter_torch_batches,
}


def _sequential(prepared: Prepared) -> Iterator[torch.Tensor]:
    for path in prepared.shards:
        file = pq.ParquetFile(path, memory_map=True)
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
