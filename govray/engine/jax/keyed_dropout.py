"""Dropout whose masks belong to rows, not to a process: those of the torch engine, bit for bit.

A row's mask is a function of (seed, stream, step, position, layer FQN) and of each element's place
in the row. So it depends neither on the rank that reads the row, nor on other rows beside it, nor
on other streams. Non-interference and a change of world size need that.

A module that is called twice for one row uses one mask twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax

from govray.engine.steps.keyed_seed import mask_seed
from govray.errors import UsageError

# The masks of `govray.engine`, bit for bit, in integers of 32 bits: JAX has 64 only on request.
#
# The generator is SplitMix64. Its i-th output, counted from 1, is ``mix(key + i·γ)`` modulo 2^64.
# Each output gives two words of 32 bits, the lower one first. Element e of a row takes word e. It
# is dropped if the word, read as a signed number, is below p·2^32 − 2^31.
#
# A number of 64 bits is a pair (high, low) of uint32 arrays.
#
# Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators" (OOPSLA).


Wide = tuple[Array, Array]
"""(high, low), each uint32 of one shape."""

_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def halves(number: int) -> Wide:
    """64 unsigned bits as (high, low), each of shape ()."""
    return jnp.uint32(number >> 32), jnp.uint32(number & 0xFFFFFFFF)


def mix(words: Wide) -> Wide:
    """SplitMix64's finalizer: a bijection of 64 bits that spreads each over all.
    ``words``: of any shape, on any device; so is the result."""
    for shift, factor in _ROUNDS:
        words = _times(_xor(words, _shifted(words, shift)), factor)
    return _xor(words, _shifted(words, 31))


def kept(keys: Wide, elements: int, p: float) -> Array:
    """Which elements of each row are kept: each one with probability 1 − p.

    Args:
        keys: Of shape (rows,), on any device: one for each row.
        elements: Of a row.
        p: Of being dropped, from 0 to 1; rounded to a multiple of 2^-32.

    Returns:
        bool of shape (rows, elements), on the same device.
    """
    high, low = keys
    if p == 1.0:
        return jnp.zeros((len(low), elements), dtype=bool)
    least = min(round(p * 2**32), 2**32 - 1) - 2**31
    count = jnp.arange(1, (elements + 1) // 2 + 1, dtype=jnp.uint32)
    drawn = mix(
        _plus((high[:, None], low[:, None]), _times((jnp.zeros_like(count), count), _GAMMA))
    )
    words = jnp.stack([drawn[1], drawn[0]], axis=-1).reshape(len(low), -1)[:, :elements]
    return lax.bitcast_convert_type(words, jnp.int32) >= jnp.int32(least)


def _xor(one: Wide, other: Wide) -> Wide:
    return one[0] ^ other[0], one[1] ^ other[1]


def _shifted(words: Wide, shift: int) -> Wide:
    """To the right, by less than 32."""
    high, low = words
    return high >> shift, (low >> shift) | (high << (32 - shift))


def _plus(one: Wide, other: Wide) -> Wide:
    low = one[1] + other[1]
    return one[0] + other[0] + (low < one[1]).astype(jnp.uint32), low


def _times(words: Wide, factor: int) -> Wide:
    (high, low), (factor_high, factor_low) = words, halves(factor)
    return _high_product(low, factor_low) + high * factor_low + low * factor_high, low * factor_low


def _high_product(one: Array, other: Array) -> Array:
    """The upper 32 bits of a product of 64, by halves of 16."""
    a, b = one >> 16, one & 0xFFFF
    c, d = other >> 16, other & 0xFFFF
    middle = ((b * d) >> 16) + ((b * c) & 0xFFFF) + ((a * d) & 0xFFFF)
    return a * c + ((b * c) >> 16) + ((a * d) >> 16) + (middle >> 16)


def key_pair(keys: jax.Array) -> Wide:
    """Keys as they come from the host, uint32 of shape (rows, 2), as (high, low) of (rows,)."""
    return keys[:, 0], keys[:, 1]


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
        high, low = key_pair(self._keys)
        layer = halves(mask_seed("layer", self._fqn))
        keys = mix((high ^ layer[0], low ^ layer[1]))
        mask = kept(keys, math.prod(inputs.shape[1:]), self.rate)
        factor = 1.0 / (1.0 - self.rate) if self.rate < 1.0 else 0.0
        return jnp.where(mask.reshape(inputs.shape), inputs, 0) * factor
