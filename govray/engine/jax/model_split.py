"""A model taken apart for its passes, and taken apart again only where it is another.

NNX walks through all of a model to take it apart, which takes milliseconds. A step has several
passes, and the model's structure hardly ever changes. So the split is kept, with every node that it
was made of and what that node held. Before each pass these are asked whether they still hold the
same objects.

Invariants: what a caller changes in the model counts from the next pass on, as if nothing were
kept. Such are modes, modules, metadata, and variables that are no parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

from flax import nnx

from govray.engine.jax.named_parameters import value_of
from govray.engine.jax.routed_pass import ModelShape, model_shape

Held = tuple[object, ...]
Look = Callable[[Any], Held]
"""What a node holds, in a fixed order."""


class ModelSplit:
    """What `model_shape` says of one model."""

    def __init__(self, model: nnx.Module) -> None:
        self._model = model
        self._nodes: list[tuple[Any, Look, Held]] = []
        self._kept: tuple[ModelShape, Any] | None = None

    def now(self) -> tuple[ModelShape, Any]:
        """The static part of the model, and NNX's state of all that is no parameter."""
        if self._kept is None or not all(
            _same(look(node), held) for node, look, held in self._nodes
        ):
            self._nodes = _nodes(self._model)
            self._kept = model_shape(self._model)
        return self._kept


def _nodes(model: nnx.Module) -> list[tuple[Any, Look, Held]]:
    """All that the split follows from, but for parameters' values."""
    found: list[tuple[Any, Look, Held]] = []
    seen: set[int] = set()
    waiting: list[object] = [model]
    while waiting:
        node = waiting.pop()
        look = _look(node)
        if look is None or id(node) in seen:
            continue
        seen.add(id(node))
        held = look(node)
        found.append((node, look, held))
        waiting += held
    return found


def _look(node: object) -> Look | None:
    """How to see what a node holds; None where it holds nothing."""
    if isinstance(node, nnx.Param):
        return _of_parameter
    if isinstance(node, nnx.Variable):
        return _of_variable
    if isinstance(node, nnx.Pytree):
        return _of_module
    if isinstance(node, dict):
        return _of_mapping
    return tuple if isinstance(node, list | tuple | set) else None


def _of_parameter(node: nnx.Param[Any]) -> Held:
    return _of_mapping(node.get_metadata())


def _of_variable(node: nnx.Variable[Any]) -> Held:
    return (*_of_parameter(node), value_of(node))


def _of_module(node: nnx.Pytree) -> Held:
    return _of_mapping(vars(node))


def _of_mapping(node: dict[Any, object]) -> Held:
    return (*node, *node.values())


def _same(one: Held, other: Held) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))
