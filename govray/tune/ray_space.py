"""A search's space in Ray Tune's own types, for searchers that draw themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import tune

from govray.tune.space import Choice, Dimension, Integer, Log, OneOf, Uniform, active


def domains(space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Name to Ray Tune's domain; whole numbers include both ends."""
    return {name: _domain(dimension) for name, dimension in space.items()}


def _domain(dimension: Dimension) -> Any:
    match dimension:
        case Log(log=(low, high)):
            return tune.loguniform(low, high)
        case Uniform(uniform=(low, high)):
            return tune.uniform(low, high)
        case Integer(int=(low, high)):
            return tune.randint(low, high + 1)
        case Choice(choice=values):
            return tune.choice(list(values))
        case OneOf():
            return tune.choice(list(dimension.ends))


def within(space: Mapping[str, Dimension], values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with each number clipped to its range, and rounded if it must be whole."""
    found = dict(values)
    for name, dimension in active(space, values).items():
        if not isinstance(dimension, Choice | OneOf):
            low, high = dimension.ends
            value = min(max(found[name], low), high)
            found[name] = round(value) if isinstance(dimension, Integer) else value
    return found
