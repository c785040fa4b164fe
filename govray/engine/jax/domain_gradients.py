"""From gradient sums to what the optimizer sees: over processes, divided by N_l, clipped by domain.

    grad_l  =  (1 / N_l) · Σ_ranks grad_l,      or no gradient at all where N_l = 0

Invariants:

* An array that is sent holds parameters of one domain and one dtype. Which they are depends on that
  domain's counts alone. From three ranks on, sums may change when another array is concatenated.
* A domain is clipped by its own norm.
* Every rank has the same numbers after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from govray.engine.jax.processes import Processes


def summed(
    processes: Processes, own: Mapping[str, Array], like: Mapping[str, Array]
) -> dict[str, Array]:
    """Σ over processes of one domain's gradients. Collective.

    Args:
        own: This rank's, by name. An absent one counts as zeros.
        like: Parameters by name, the same on all ranks: what is summed.

    Raises:
        InfrastructureFailed: The sum broke off, because another process is gone.
        BaseException: What went wrong here, once the sum is done without this rank's part.
    """
    if processes.world_size == 1:
        return _filled(own, like)
    found: dict[str, Array] = {}
    failed: list[BaseException] = []
    for dtype in sorted({str(parameter.dtype) for parameter in like.values()}):
        names = [name for name, parameter in like.items() if str(parameter.dtype) == dtype]
        numbers = sum(like[name].size for name in names)
        try:
            filled = _filled(own, {name: like[name] for name in names})
            mine = jax.block_until_ready(_flat([filled[name] for name in names]))
        except BaseException as error:
            # The others are in the sum already, or will be. Zeros: this step moves no weight.
            failed.append(error)
            mine = np.zeros(numbers, like[names[0]].dtype)
        shapes = tuple(like[name].shape for name in names)
        found |= dict(zip(names, _apart(processes.total(mine), shapes), strict=True))
    if failed:
        raise failed[0]
    return found


def _filled(own: Mapping[str, Array], like: Mapping[str, Array]) -> dict[str, Array]:
    return {name: own[name] if name in own else jnp.zeros_like(p) for name, p in like.items()}


@jax.jit
def _flat(parts: Sequence[Array]) -> Array:
    return jnp.concatenate([part.ravel() for part in parts])


@partial(jax.jit, static_argnames=("shapes",))
def _apart(flat: Array, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [
        flat[end - math.prod(shape) : end].reshape(shape)
        for shape, end in zip(shapes, ends.tolist(), strict=True)
    ]


def divided(sums: Mapping[str, Array], counts: Mapping[str, int]) -> dict[str, Array]:
    """Each sum over N_l, which is not 0."""
    # One array: each that is handed to a device takes time. In float64 a count is exact.
    return _divided(dict(sums), np.array([counts[name] for name in sorted(sums)], np.float64))


@jax.jit
def _divided(sums: dict[str, Array], counts: Array) -> dict[str, Array]:
    # Half precision can't hold the count.
    return {
        name: (sums[name].astype(wide) / counts[place].astype(wide)).astype(sums[name].dtype)
        for place, name in enumerate(sorted(sums))
        for wide in [jnp.promote_types(sums[name].dtype, jnp.float32)]
    }


@jax.jit
def norm(gradients: dict[str, Array]) -> Array:
    """The Euclidean norm of a domain's gradients.

    Returns:
        Of shape (), in float32 or wider.
    """
    wide = [g.astype(jnp.promote_types(g.dtype, jnp.float32)) for g in gradients.values()]
    return jnp.sqrt(sum(jnp.vdot(g, g) for g in wide))


@jax.jit
def scaled(gradients: dict[str, Array], scale: float) -> dict[str, Array]:
    """Gradients times a number."""
    return {name: gradient * scale for name, gradient in gradients.items()}


@jax.jit
def added(one: dict[str, Array], other: dict[str, Array]) -> dict[str, Array]:
    """One pass's gradients added to those before it; parameters of either are in the result."""
    both = {name: one[name] + other[name] for name in one.keys() & other.keys()}
    return {**one, **other, **both}
