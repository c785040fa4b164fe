"""A Flax NNX model and an Optax optimizer, as `govray.engine.steps.routed_step` asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import Array

from govray.engine.jax import domain_gradients
from govray.engine.jax.domain_gradients import GroupOptimizer
from govray.engine.jax.keyed_dropout import row_keys
from govray.engine.jax.layer_groups import layer_groups
from govray.engine.jax.lora import first_pairs
from govray.engine.jax.named_parameters import named_parameters, value_of
from govray.engine.jax.processes import Processes
from govray.engine.jax.routed_pass import (
    LossFn,
    ModelShape,
    PassRoute,
    model_shape,
    refuse_changed,
    routed_pass,
)
from govray.engine.jax.startup.row_trial import RowTrial
from govray.engine.steps.batch import MicroBatch
from govray.engine.steps.first_exchange import Terms
from govray.engine.steps.routed import Routed
from govray.engine.steps.routed_step import RoutedStep
from govray.errors import Refused
from govray.governance.policy.route import ADAPTER, Route


class FlaxFramework:
    """Implements `govray.engine.steps.routed_step.Framework`. Arrays are JAX's.

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
        shared = gradients.keys() & sums.keys()
        both = domain_gradients.added(
            {n: sums[n] for n in shared}, {n: gradients[n] for n in shared}
        )
        return total, {**sums, **gradients, **both}

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """Every process's row of int64, by rank. Collective."""
        return self._processes.gather(row)

    def average(self, sums: Mapping[str, Array], counts: Mapping[str, int]) -> dict[str, Array]:
        """(1 / N_l) Σ over processes. Collective; shapes, dtypes and device are the parameters'."""
        return domain_gradients.averaged(self._processes, sums, self._values(counts), counts)

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


Held = tuple[object, ...]
"""What a node holds, in a fixed order."""


class ModelSplit:
    """What `model_shape` says of one model, kept while its nodes hold the same objects.

    NNX takes milliseconds to take a model apart, a step has several passes, and a structure hardly
    ever changes. What a caller changes counts from the next pass on: modes, modules, metadata, and
    variables that are no parameters.
    """

    def __init__(self, model: nnx.Module) -> None:
        self._model = model
        self._nodes: list[tuple[object, Held]] = []
        self._kept: tuple[ModelShape, Any] | None = None

    def now(self) -> tuple[ModelShape, Any]:
        """The static part of the model, and NNX's state of all that is no parameter."""
        if self._kept is None or not all(_same(_held(node), held) for node, held in self._nodes):
            self._nodes = _nodes(self._model)
            self._kept = model_shape(self._model)
        return self._kept


def _nodes(model: nnx.Module) -> list[tuple[object, Held]]:
    """All that the split follows from, but for parameters' values."""
    found: list[tuple[object, Held]] = []
    seen: set[int] = set()
    waiting: list[object] = [model]
    while waiting:
        node = waiting.pop()
        held = _held(node)
        if held is not None and id(node) not in seen:
            seen.add(id(node))
            found.append((node, held))
            waiting += held
    return found


def _held(node: object) -> Held | None:
    """What a node holds, but for a parameter's value; None where it holds nothing."""
    if isinstance(node, nnx.Variable):
        metadata = node.get_metadata()
        described = (*metadata, *metadata.values())
        return described if isinstance(node, nnx.Param) else (*described, value_of(node))
    if isinstance(node, nnx.Pytree):
        node = vars(node)
    if isinstance(node, dict):
        return (*node, *node.values())
    return tuple(node) if isinstance(node, list | tuple | set) else None


def _same(one: Held | None, other: Held) -> bool:
    return one is not None and len(one) == len(other) and all(map(is_, one, other))


def build_step(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    *,
    routes: Mapping[str, Route],
    terms: Terms,
    groups: Mapping[str, Sequence[str]] | None = None,
    alternatives: Mapping[str, Collection[str]] = MappingProxyType({}),
    seed: int = 17,
    clip_norm: float | None = 1.0,
    max_rows: int | None = None,
) -> RoutedStep:
    """A governed step over a Flax model. Collective.

    Args:
        model: Equal on all ranks. A step puts new weights into it.
        optimizer: It is given one layer group at a time, as a flat mapping of names to arrays.
        routes: Stream id → route, of every class that was admitted, alternatives included.
        terms: What the run's steps rest on: policy, plan, corpora, and how long each holds.
        groups: Layer group → FQNs; by default those of `layer_groups`.
        alternatives: Stream id → digests of the other routes that its rows may take: those of
            later phases, and of a gate's fallback.
        seed: Of dropout and of the adapters' first weights.
        clip_norm: Largest gradient norm of a domain; None does not clip.
        max_rows: Rows that go through the model together; None for all of a route.

    Raises:
        Refused: The model or the optimizer can't be routed exactly, a route does not fit, a
            parameter escapes governance, or ranks hold different set-ups.
    """
    ranks = {each.adapter: each.rank for each in routes.values() if each.adapter and each.rank}
    adapters = first_pairs(model, ranks, seed)
    whole = dict(layer_groups(model) if groups is None else groups)
    for name in adapters:
        group = name.partition("/")[0]
        whole[group] = (*whole.get(group, ()), name)
    framework = FlaxFramework(model, adapters, whole, optimizer, seed)
    shapes = {n: [list(p.shape), str(p.dtype)] for n, p in framework.parameters().items()}
    return RoutedStep(
        framework,
        groups=whole,
        routes=routes,
        terms=terms,
        alternatives=alternatives,
        setup={"parameters": shapes, "seed": seed},
        clip_norm=clip_norm,
        max_rows=max_rows,
    )
