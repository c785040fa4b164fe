"""Optax, one layer group at a time: a group that got nothing is left alone.

Each layer group has a state of its own, count of updates included. Where N_l = 0 the group's state
and weights are the very arrays of before: no momentum, no decay, no step count. A state over all
parameters has one count for all, so one class's rows would change the bias correction of another's.

Schedules read the step of the plan. Optax counts a state's updates instead, which would tie a
group's learning rate to how much data it had.

Invariants: a group's update is a function of its own gradients, weights and state, and of the step.
An optimizer that mixes parameters, as one global norm does, is refused by a trial on two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from govray.errors import Refused, UsageError

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
