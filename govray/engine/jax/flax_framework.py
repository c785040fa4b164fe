"""A Flax NNX model and an Optax optimizer, as `govray.engine.steps.routed_step` asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array

from govray.engine.jax import domain_gradients
from govray.engine.jax.group_optimizer import GroupOptimizer
from govray.engine.jax.keyed_dropout import row_keys
from govray.engine.jax.model_split import ModelSplit
from govray.engine.jax.named_parameters import named_parameters, value_of
from govray.engine.jax.processes import Processes
from govray.engine.jax.routed_pass import LossFn, PassRoute, refuse_changed, routed_pass
from govray.engine.jax.startup.row_trial import RowTrial
from govray.engine.steps.batch import MicroBatch
from govray.engine.steps.routed import Routed
from govray.errors import Refused
from govray.governance.policy.route import ADAPTER


class FlaxFramework:
    """Implements `govray.engine.steps.framework.Framework`. Arrays are JAX's.

    JAX's arrays are values: new weights stand beside the old ones until `put`.

    Args:
        model: Equal on all ranks. `put` gives it new weights.
        groups: Layer group → names of parameters, adapters' groups included.
        seed: Of dropout.

    Attributes:
        adapters: As given; `put` replaces values.
        optimizer: The optimizer's states by layer group.

    Raises:
        Refused: A parameter is in float16, or the optimizer mixes parameters.
    """

    def __init__(
        self,
        model: nnx.Module,
        adapters: dict[str, Array],
        groups: Mapping[str, Sequence[str]],
        transformation: optax.GradientTransformation,
        seed: int,
    ) -> None:
        self.adapters = adapters
        self._processes = Processes()
        self.rank, self.world_size = self._processes.rank, self._processes.world_size
        self._split = ModelSplit(model)
        self._variables = named_parameters(model)
        self.groups = groups
        self._seed = seed
        self._trial = RowTrial()
        _refuse_float16(self.parameters())
        self.optimizer = GroupOptimizer(transformation, groups, self.parameters())

    def parameters(self) -> dict[str, Array]:
        """All of them by name, as they are now; of their own shape, dtype and device."""
        return self._values([*self._variables, *self.adapters])

    def _values(self, names: Iterable[str]) -> dict[str, Array]:
        held, adapters = self._variables, self.adapters
        return {n: adapters[n] if n in adapters else value_of(held[n]) for n in names}

    def differentiate(
        self,
        part: MicroBatch,
        routed: Routed,
        step: int,
        loss_fn: LossFn,
        sums: Mapping[str, Array],
    ) -> tuple[Array, dict[str, Array]]:
        """One pass; `routed_pass` says what it computes. It returns before the device is done.

        Each pair of a loss function and a route is compiled once for each number of rows. A few
        rows go through the model for trial before a stream trains.

        Raises:
            Refused: The model can't be routed exactly.
        """
        shape, rest = self._split.now()
        read = [name for name, _ in shape.paths]
        if routed.adapter is not None:
            read += self.groups[f"{ADAPTER}{routed.adapter}"]
        keys = row_keys(self._seed, step, part.stream, part.positions)
        total, gradients, changed = routed_pass(
            shape,
            PassRoute(tuple(sorted(routed.weights.items())), routed.adapter),
            loss_fn,
            self._values(name for name in read if name in routed.weights),
            self._values(name for name in read if name not in routed.weights),
            rest,
            keys,
            dict(part.tensors),
        )
        refuse_changed(changed)
        if self._trial.due(part, step):
            self._trial(part, keys, (shape, routed.adapter, loss_fn, self._values(read), rest))
        shared = {name: sums[name] for name in gradients if name in sums}
        return total, {**sums, **domain_gradients.added(shared, gradients)}

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """Every process's row of int64, by rank. Collective."""
        return self._processes.gather(row)

    def average(self, sums: Mapping[str, Array], counts: Mapping[str, int]) -> dict[str, Array]:
        """(1 / N_l) Σ over processes. Collective; shapes, dtypes and device are the parameters'."""
        like = self._values(counts)
        return domain_gradients.divided(
            domain_gradients.summed(self._processes, sums, like), counts
        )

    def norm(self, gradients: Mapping[str, Array]) -> float:
        """The Euclidean norm; of any shapes, floating dtypes and device."""
        return float(domain_gradients.norm(dict(gradients)))

    def move(
        self, group: str, step: int, gradients: Mapping[str, Array], scale: float
    ) -> tuple[str, dict[str, Array], Any]:
        """The group's weights and state after an update, once the device is done."""
        scaled = domain_gradients.scaled(dict(gradients), scale) if scale != 1.0 else gradients
        own = self._values(self.groups[group])
        moved = self.optimizer.moved(group, step, own, scaled)
        return (group, *jax.block_until_ready(moved))

    def put(self, moved: Sequence[tuple[str, dict[str, Array], Any]]) -> None:
        """Give the model, the adapters and the optimizer what `move` made."""
        for group, parameters, state in moved:
            self.optimizer.states[group] = state
            for name, value in parameters.items():
                if name in self.adapters:
                    self.adapters[name] = value
                else:
                    self._variables[name].set_value(value)


def _refuse_float16(parameters: Mapping[str, Array]) -> None:
    for name, value in parameters.items():
        if value.dtype == np.float16:
            raise Refused(
                "gradients in float16 vanish without loss scaling, and a scale that adapts would "
                "couple domains: one's overflow would change what the others learn",
                where=name,
                do="Use bfloat16",
            )
