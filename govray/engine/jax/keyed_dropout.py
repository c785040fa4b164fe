"""Dropout whose masks belong to rows, not to a process: those of the torch engine, bit for bit.

A row's mask is a function of (seed, stream, step, position, layer FQN) and of each element's place
in the row. So it depends neither on the rank that reads the row, nor on other rows beside it, nor
on other streams. Non-interference and a change of world size need that.

A module that is called twice for one row uses one mask twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from govray.engine.jax import counter_masks
from govray.engine.steps.keyed_seed import mask_seed
from govray.errors import UsageError


def row_keys(seed: int, step: int, stream: str, positions: Sequence[int]) -> np.ndarray:
    """The keys of a pass's rows.

    Args:
        positions: Of each row, in the stream's quota of this step.

    Returns:
        uint32 of shape (rows, 2), the higher half first.
    """
    keys = [mask_seed(seed, stream, step, position) for position in positions]
    return np.array([[key >> 32, key & 0xFFFFFFFF] for key in keys], dtype=np.uint32)


class RowDropout(nnx.Module):
    """What stands in for an ``nnx.Dropout`` while a pass is in the model.
    ``keys``: of the pass's rows, uint32 of shape (rows, 2)."""

    def __init__(self, dropout: nnx.Dropout, fqn: str, keys: Array) -> None:
        if dropout.broadcast_dims:
            raise UsageError(
                "its mask is shared along dimensions, and cannot be keyed by row",
                where=fqn,
                do="Use nnx.Dropout without broadcast_dims",
            )
        self.rate = float(dropout.rate)
        self.deterministic = dropout.deterministic
        self._fqn = fqn
        self._keys = nnx.data(keys)  # a transformation inside the model compares what is static

    def __call__(
        self, inputs: Array, *, deterministic: bool | None = None, rngs: object = None
    ) -> Array:
        """(rows, …) of a floating dtype → the same shape, dtype and device."""
        off = self.deterministic if deterministic is None else deterministic
        if off or self.rate == 0.0:
            return inputs
        if inputs.ndim == 0 or inputs.shape[0] != len(self._keys):
            raise UsageError(
                f"dropout over an array of shape {inputs.shape} in a pass of {len(self._keys)} "
                "rows",
                where=self._fqn,
                do="Keep rows in the first dimension, so that each row has its own mask",
            )
        high, low = counter_masks.key_pair(self._keys)
        layer = counter_masks.halves(mask_seed("layer", self._fqn))
        keys = counter_masks.mix((high ^ layer[0], low ^ layer[1]))
        mask = counter_masks.kept(keys, math.prod(inputs.shape[1:]), self.rate)
        factor = 1.0 / (1.0 - self.rate) if self.rate < 1.0 else 0.0
        return jnp.where(mask.reshape(inputs.shape), inputs, 0) * factor
