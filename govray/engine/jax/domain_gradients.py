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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from govray.engine.jax.processes import Processes
from govray.errors import Refused, UsageError


def averaged(
    processes: Processes,
    own: Mapping[str, Array],
    like: Mapping[str, Array],
    counts: Mapping[str, int],
) -> dict[str, Array]:
    """(1 / N_l) Σ over processes of one domain's gradients. Collective.

    Args:
        own: This rank's, by name. An absent one counts as zeros.
        like: Parameters by name, the same on all ranks: what is summed.
        counts: N_l by name, above 0.

    Raises:
        InfrastructureFailed: The sum broke off, because another process is gone.
        BaseException: What went wrong here, once the sum is done without this rank's part.
    """
    alone = processes.world_size == 1
    found: dict[str, Array] = {}
    failed: list[BaseException] = []
    for dtype in sorted({str(parameter.dtype) for parameter in like.values()}):
        names = [name for name, parameter in like.items() if str(parameter.dtype) == dtype]
        sums: Sequence[Array] | Array | np.ndarray
        try:
            sums = [own[name] if name in own else jnp.zeros_like(like[name]) for name in names]
            if not alone:
                sums = jax.block_until_ready(_row(sums))
        except BaseException as error:
            if alone:
                raise
            # The others are in the sum already, or will be. Zeros: this step moves no weight.
            failed.append(error)
            sums = np.zeros((1, sum(like[name].size for name in names)), like[names[0]].dtype)
        if not alone:
            sums = processes.total(sums)
        # One array: each that is handed to a device takes time. In float64 a count is exact.
        each = np.array([counts[name] for name in names], np.float64)
        shapes = tuple(like[name].shape for name in names)
        found |= dict(zip(names, _averages(sums, each, shapes), strict=True))
    if failed:
        raise failed[0]
    return found


@jax.jit
def _row(parts: Sequence[Array]) -> Array:
    return jnp.concatenate([part.ravel() for part in parts])[None]


@partial(jax.jit, static_argnames=("shapes",))
def _averages(
    sums: Array | Sequence[Array], counts: Array, shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    """Sums over their counts. They come each by itself, or all behind each other in one array."""
    if isinstance(sums, Array):
        sums = jnp.split(sums, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    # Half precision can't hold the count.
    return [
        (each.astype(wide) / count.astype(wide)).astype(each.dtype).reshape(shape)
        for each, count, shape in zip(sums, counts, shapes, strict=True)
        for wide in [jnp.promote_types(each.dtype, jnp.float32)]
    ]


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
    return {name: gradient * scale for name, gradient in gradients.items()}


@jax.jit
def added(one: dict[str, Array], other: dict[str, Array]) -> dict[str, Array]:
    """One pass's gradients added to those before it, of the same parameters."""
    return {name: one[name] + other[name] for name in one}


# Optax, one layer group at a time: a group that got nothing is left alone.
#
# Each layer group has a state of its own, count of updates included. Where N_l = 0 the group's
# state and weights are the very arrays of before: no momentum, no decay, no step count. A state
# over all parameters has one count for all, so one class's rows would change the bias correction
# of another's.
#
# Schedules read the step of the plan. Optax counts a state's updates instead, which would tie a
# group's learning rate to how much data it had.
#
# Invariants: a group's update is a function of its own gradients, weights and state, and of the
# step. An optimizer that mixes parameters, as one global norm does, is refused by a trial on two
# numbers.


_SCHEDULED = frozenset({"ScaleByScheduleState", "WrappedScheduleState"})
"""States that count for a schedule, by class name: that of ``inject_hyperparams`` is not public."""


class GroupOptimizer:
    """An Optax transformation with a state for each layer group.

    Args:
        transformation: It sees a flat mapping of names to arrays: those of one layer group.
        groups: Layer group → names of its parameters, adapters' included.

    Attributes:
        states: Layer group → state.

    Raises:
        Refused: The transformation mixes parameters.
    """

    def __init__(
        self,
        transformation: optax.GradientTransformation,
        groups: Mapping[str, Sequence[str]],
        parameters: Mapping[str, Array],
    ) -> None:
        require_separable(transformation)
        self._transformation = transformation
        self.states: dict[str, Any] = {}
        for group, names in groups.items():
            try:
                self.states[group] = transformation.init({n: parameters[n] for n in names})
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"it has no state for the parameters of {group} alone: {error}",
                    where="optimizer",
                    do="Write masks and labels as functions of the parameters, not as trees",
                ) from error

    def moved(
        self, group: str, step: int, parameters: Mapping[str, Array], gradients: Mapping[str, Array]
    ) -> tuple[dict[str, Array], Any]:
        """The weights and the state that a group has after an update; nothing changes yet.
        ``parameters``, ``gradients``: the group's, by name, of equal shapes, dtypes and device."""
        return _moved(
            self._transformation,
            self.states[group],
            dict(gradients),
            dict(parameters),
            np.int32(step),
        )


@partial(jax.jit, static_argnames=("transformation",))
def _moved(
    transformation: optax.GradientTransformation,
    state: Any,
    gradients: dict[str, Array],
    parameters: dict[str, Array],
    step: Array | np.int32,
) -> tuple[dict[str, Array], Any]:
    updates, state = transformation.update(gradients, _at_step(state, step), parameters)
    return optax.apply_updates(parameters, updates), state


def _at_step(state: Any, step: Array | np.int32) -> Any:
    """The state with every schedule where the plan is."""

    def scheduled(part: Any) -> bool:
        return type(part).__name__ in _SCHEDULED

    return jax.tree.map(
        lambda part: part._replace(count=step) if scheduled(part) else part,
        state,
        is_leaf=scheduled,
    )


def require_separable(transformation: optax.GradientTransformation) -> None:
    """Try two parameters together, and each alone."""
    gradients = {"first": jnp.full((2, 2), 0.5), "second": jnp.full((2, 2), 300.0)}

    def twice(names: Sequence[str]) -> dict[str, Array]:
        parameters = {name: jnp.ones((2, 2)) for name in names}
        own = {name: gradients[name] for name in names}
        state = transformation.init(parameters)
        for _ in range(2):
            updates, state = transformation.update(own, state, parameters)
            parameters = optax.apply_updates(parameters, updates)
        return parameters

    together = twice(["first", "second"])
    for name, value in together.items():
        if not np.array_equal(value, twice([name])[name]):
            raise Refused(
                "its update of one parameter depends on the gradients of others",
                where="optimizer",
                do="Leave clip_by_global_norm to build_step(clip_norm=...), which clips by domain",
            )
