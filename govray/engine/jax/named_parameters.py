"""The modules and variables of a Flax NNX model by fully qualified name, sorted by it.

Not in definition order: a model that has been through ``nnx.jit`` or ``nnx.merge`` has lost that.
A variable that several places hold has several names, and the first is its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from flax import nnx

from govray.errors import UsageError

Path = tuple[str | int, ...]
"""As NNX writes it: attributes by name, entries of a list by number."""


def aliases(model: nnx.Module) -> dict[int, tuple[nnx.Variable, list[Path]]]:
    """Every variable of a model, with all paths that lead to it, by its ``id``."""
    found: dict[int, tuple[nnx.Variable, list[Path]]] = {}
    for path, value in sorted(_below(model, (), frozenset()), key=lambda each: _place(each[0])):
        if isinstance(value, nnx.Variable):
            found.setdefault(id(value), (value, []))[1].append(path)
    return found


def named_parameters(model: nnx.Module) -> dict[str, nnx.Variable]:
    """FQN → parameter. One that has several names stands once, by its first."""
    return {
        fqn(paths[0]): variable
        for variable, paths in aliases(model).values()
        if isinstance(variable, nnx.Param)
    }


def value_of(variable: nnx.Variable[Any]) -> Any:
    """What ``get_value`` gives, sooner.

    That looks for a reference in each array, which takes a step of many parameters milliseconds.

    Returns:
        Of any shape, dtype and device.
    """
    raw = variable.get_raw_value()
    plain = isinstance(raw, jax.Array) and "on_get_value" not in variable.get_metadata()
    return raw if plain else variable.get_value()


def named_modules(model: nnx.Module) -> dict[str, nnx.Module]:
    """FQN → module, for every module at every place; the model's own name is empty."""
    own = {"": model}
    below = _below(model, (), frozenset())
    return own | {fqn(path): value for path, value in below if isinstance(value, nnx.Module)}


def exchange_modules(model: nnx.Module, stand_ins: Mapping[str, nnx.Module]) -> None:
    """Put modules in the place of a model's own. ``model``: it is changed."""
    modules = named_modules(model)
    for name, stand_in in stand_ins.items():
        parent, _, key = name.rpartition(".")
        holder = modules.get(parent)
        if isinstance(holder, nnx.List):
            holder[int(key)] = stand_in
        elif holder is not None:
            setattr(holder, key, stand_in)
        else:
            raise UsageError(
                "it is held by a plain list or dict, so nothing can stand in for it",
                where=name,
                do="Hold modules in attributes or in an nnx.List",
            )


def fqn(path: Path) -> str:
    """``blocks.0.mlp.up.kernel``."""
    return ".".join(map(str, path))


def _place(path: Path) -> list[tuple[bool, int, str]]:
    """Numbers come as numbers: block 10 after block 9."""
    return [(False, key, "") if isinstance(key, int) else (True, 0, key) for key in path]


def _below(node: object, path: Path, above: frozenset[int]) -> Iterator[tuple[Path, object]]:
    """What a node holds, at any depth, at every place. A module that holds itself ends there."""
    for key, value in _held(node):
        if id(value) in above:
            continue
        here = (*path, key)
        yield here, value
        if not isinstance(value, nnx.Variable):
            yield from _below(value, here, above | {id(node)})


def _held(node: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(node, nnx.List):
        yield from enumerate(node)
    elif isinstance(node, nnx.Module):
        for name, value in vars(node).items():
            if not name.startswith("_pytree__"):
                yield name, value
    elif isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)
