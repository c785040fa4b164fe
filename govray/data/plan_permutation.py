"""The batch plan's permutation over whole arrays.

The same network, round keys and cycle walking as ``govray.governance.record.batch_plan.permute``,
which is the definition; here in numpy's ``uint64``, whose arithmetic is modulo 2**64 as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from govray.governance.record.batch_plan import half_width

Indices = npt.NDArray[np.uint64]


def permute(keys: Sequence[int], n: int, indices: npt.NDArray[np.integer]) -> Indices:
    """``batch_plan.permute(keys, n, i)`` for each i of ``indices`` (any shape), same shape.

    Raises:
        ValueError: an index is outside ``[0, n)``.
    """
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise ValueError(f"an index is outside [0, {n})")
    values = indices.astype(np.uint64).ravel()
    half = np.uint64(half_width(n))
    mask = np.uint64((1 << int(half)) - 1)
    rounds = [np.uint64(key) for key in keys]
    # Walk on only where the walk has not come back below n.
    walking = np.arange(values.size)
    while walking.size:
        left, right = values[walking] >> half, values[walking] & mask
        for key in rounds:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[walking] = (left << half) | right
        walking = walking[values[walking] >= n]
    return values.reshape(indices.shape)


def _mix(values: Indices) -> Indices:
    """Splitmix64's finaliser, as ``batch_plan.mix``."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
