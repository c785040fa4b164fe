"""A Keras 3 model over JAX in the seven functions of `govray.engine.steps.framework`: docs/jax.md.

Run by hand with Keras 3.15.1 and ``KERAS_BACKEND=jax``. Keras is no dependency, so no test runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from govray.engine.jax import domain_gradients
from govray.engine.jax.group_optimizer import GroupOptimizer
from govray.engine.jax.processes import Processes
from govray.engine.steps.batch import IGNORED, MicroBatch
from govray.engine.steps.routed import Routed
from govray.errors import Refused

Arrays = Mapping[str, Array]


class KerasFramework:
    """A Keras model and an Optax optimizer. A batch's tensors are ``inputs`` and ``targets``.

    Args:
        model: A built Keras model. Variables go by their path, such as ``sequential/upper/kernel``.
        groups: Layer group → paths of its variables. Every trainable variable is in one.
        transformation: The optimizer.

    Raises:
        Refused: The model has state that rows would share.
    """

    def __init__(
        self,
        model: Any,
        groups: Mapping[str, Sequence[str]],
        transformation: optax.GradientTransformation,
    ) -> None:
        if model.non_trainable_variables:
            raise Refused(
                f"a forward pass reads or writes {model.non_trainable_variables[0].path}",
                where="model",
                do="Leave out BatchNormalization and Dropout, and freeze by the policy",
            )
        self._model, self._groups, self._processes = model, groups, Processes()
        self.rank, self.world_size = self._processes.rank, self._processes.world_size
        self._held = {each.path: each.value for each in model.trainable_variables}
        self._optimizer = GroupOptimizer(transformation, groups, self._held)
        self._passes: dict[Any, Callable[..., Any]] = {}

    def parameters(self) -> Arrays:
        return dict(self._held)

    def differentiate(
        self, part: MicroBatch, routed: Routed, step: int, loss_fn: Any, sums: Arrays
    ) -> tuple[Array, Arrays]:
        weights = routed.weights
        key = (tuple(sorted(weights.items())), loss_fn)
        if key not in self._passes:
            self._passes[key] = jax.jit(
                lambda own, rest, tensors: self._pass(own, rest, tensors, weights, loss_fn)
            )
        own = {name: self._held[name] for name in weights}
        rest = {name: value for name, value in self._held.items() if name not in own}
        total, found = self._passes[key](own, rest, dict(part.tensors))
        shared = {name: sums[name] for name in found if name in sums}
        return total, {**sums, **domain_gradients.added(shared, found)}

    def _pass(
        self, own: Arrays, rest: Arrays, tensors: Arrays, weights: Mapping[str, float], loss_fn: Any
    ) -> tuple[Array, Arrays]:
        def summed(own: Arrays) -> Array:
            every = {**own, **rest}
            values = [every[each.path] for each in self._model.trainable_variables]
            outputs, _ = self._model.stateless_call(values, [], tensors["inputs"], training=True)
            return jnp.where(tensors["targets"] != IGNORED, loss_fn(outputs, tensors), 0).sum()

        total, found = jax.value_and_grad(summed)(own)
        return total, {name: weights[name] * gradient for name, gradient in found.items()}

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        return self._processes.gather(row)

    def average(self, sums: Arrays, counts: Mapping[str, int]) -> Arrays:
        like = {name: self._held[name] for name in counts}
        whole = domain_gradients.summed(self._processes, sums, like)
        return domain_gradients.divided(whole, counts)

    def norm(self, gradients: Arrays) -> float:
        return float(domain_gradients.norm(dict(gradients)))

    def move(self, group: str, step: int, gradients: Arrays, scale: float) -> Any:
        own = {name: self._held[name] for name in self._groups[group]}
        scaled = domain_gradients.scaled(dict(gradients), scale)
        return group, *jax.block_until_ready(self._optimizer.moved(group, step, own, scaled))

    def put(self, moved: Sequence[Any]) -> None:
        for group, values, state in moved:
            self._optimizer.states[group] = state
            self._held |= values
        for each in self._model.trainable_variables:
            each.assign(self._held[each.path])
