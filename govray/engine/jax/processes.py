"""What JAX's processes send each other: rows of integers, and sums of gradients.

`jax.distributed.initialize` joins them, as Ray's `JaxTrainer` does on its workers. On CPUs gloo
carries the sums, on GPUs NCCL. Without it a process is alone, and nothing is sent.

Each process computes on its first device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from govray.errors import InfrastructureFailed


class Processes:
    def __init__(self) -> None:
        self.rank, self.world_size = jax.process_index(), jax.process_count()
        first: dict[int, jax.Device] = {}
        for device in sorted(jax.devices(), key=lambda each: each.id):
            first.setdefault(device.process_index, device)
        self._own = first[self.rank]
        mesh = Mesh(np.array([first[rank] for rank in range(self.world_size)]), ("ranks",))
        self._by_rank = NamedSharding(mesh, PartitionSpec("ranks"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._add: Callable[[Array], Array] = jax.jit(
            partial(_sum_of_rows), out_shardings=everywhere
        )
        self._show: Callable[[Array], Array] = jax.jit(
            partial(_rows_as_they_are), out_shardings=everywhere
        )

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """Every process's row of int64, by rank. Collective.
        ``row``: of one length on all ranks."""
        if self.world_size == 1:
            return [list(row)]
        # As words of 32 bits: JAX has 64 only on request.
        words = np.array([row], dtype=np.int64).view(np.uint32)
        with lost_processes_reported(self.rank):
            gathered = np.asarray(self._of_all(self._show, words))
        return np.ascontiguousarray(gathered).view(np.int64).tolist()

    def total(self, row: Array | np.ndarray) -> Array:
        """Σ over processes of an array that each has. Collective.

        Args:
            row: Of shape (1, numbers) and one floating dtype on all ranks, on this rank's device.

        Returns:
            Of shape (numbers,), its dtype and device.
        """
        with lost_processes_reported(self.rank):
            return self._of_all(self._add, row)

    def _of_all(self, function: Callable[[Array], Array], row: Array | np.ndarray) -> Array:
        """A function of every process's row. Collective."""
        shape = (self.world_size, *row.shape[1:])
        row = jax.device_put(row, self._own)
        rows = jax.make_array_from_single_device_arrays(shape, self._by_rank, [row])
        return function(rows).addressable_data(0)


def _sum_of_rows(rows: Array) -> Array:
    return rows.sum(0)


def _rows_as_they_are(rows: Array) -> Array:
    return rows


@contextmanager
def lost_processes_reported(rank: int) -> Iterator[None]:
    """Around a collective: JAX raises a bare error of its runtime when a peer is gone."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise InfrastructureFailed(
            "a collective broke off, because another rank is gone or out of reach",
            where=f"rank {rank}",
            do=f"See the other ranks' logs. JAX says: {error}",
        ) from error
