"""Reading in Ray Data's tasks: a store's shards that are small enough are fetched once for all.

A task that fetched them itself would do so in each process that runs one. So one task of Ray
fetches a shard into Ray's object store, from which the processes of a node read it in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray

from govray.data import arrow_rows
from govray.data.prepared.object_ranges import ObjectRanges
from govray.data.step_reader import StepReader
from govray.storage.bucket_path import BucketPath

FETCH_CPUS = 0.5
"""CPUs that the fetching of a shard reserves."""


class TaskReader:
    """`StepReader.load` for ``map_batches``."""

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._shards: dict[str, Any] = {
            path: _fetched.options(num_cpus=FETCH_CPUS).remote(path)
            for path in reader.whole_objects
        }

    def __call__(self, items: pa.Table) -> pa.Table:
        """As `StepReader.load`."""
        missing = [path for path in self._shards if not arrow_rows.is_open(path)]
        for path in missing:
            data = ray.get(self._shards[path])
            if data is not None:
                arrow_rows.open_bytes(path, pa.py_buffer(data))
        return self._reader.load(items)


@ray.remote
def _fetched(path: str) -> npt.NDArray[np.uint8] | None:
    """An object's bytes ``[n]``; None if the store does not give them: who reads them says why."""
    try:
        return np.frombuffer(ObjectRanges(BucketPath.parse(path)).fetch_all(), np.uint8)
    except OSError:
        return None
