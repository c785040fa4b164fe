"""A model taken apart for its passes, and taken apart again only where it is another.

NNX walks through all of a model to take it apart, which takes milliseconds. A step has several
passes, and the model's structure hardly ever changes. So the split is kept together with what it
was made of. Before each pass a short walk asks whether these are still the same objects.

Invariants: what a caller changes in the model counts from the next pass on, as if nothing were
kept. Such are modes, modules, metadata, and variables that are no parameters.
"""

from __future__ import annotations

from typing import Any

from flax import nnx

from govray.jax.routed_pass import ModelShape, model_shape

_BOOKKEEPING = ("_pytree__nodes", "_pytree__state")
_SIMPLE = (bool, int, float, str, type(None))


class ModelSplit:
    """What `model_shape` says of one model.

    Args:
        model: It is only looked at.
    """

    def __init__(self, model: nnx.Module) -> None:
        self._model = model
        self._made_of: list[object] = []
        self._kept: tuple[ModelShape, Any] | None = None

    def now(self) -> tuple[ModelShape, Any]:
        """The static part of the model, and NNX's state of all that is no parameter."""
        found: list[object] = []
        _collect(self._model, set(), found)
        same = len(found) == len(self._made_of) and all(map(_is, found, self._made_of))
        if self._kept is None or not same:
            self._kept, self._made_of = model_shape(self._model), found
        return self._kept


def _collect(node: object, seen: set[int], found: list[object]) -> None:
    """Add all that the split follows from, but for parameters' values, in a fixed order."""
    if id(node) in seen:
        return
    held: Any
    if isinstance(node, nnx.Variable):
        seen.add(id(node))
        found.extend(node.get_metadata().values())
        if not isinstance(node, nnx.Param):
            found.append(node.get_value())
        return
    if isinstance(node, nnx.Pytree):
        held = {name: value for name, value in vars(node).items() if name not in _BOOKKEEPING}
    elif isinstance(node, dict):
        held = node
    elif isinstance(node, list | tuple | set):
        held = dict(enumerate(node))
    else:
        return
    seen.add(id(node))
    found.extend(held)
    found.extend(held.values())
    for value in held.values():
        if not isinstance(value, _SIMPLE):
            _collect(value, seen, found)


def _is(one: object, other: object) -> bool:
    return one is other
