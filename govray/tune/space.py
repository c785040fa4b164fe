"""What may vary in a search: ranges by dotted name, nested and conditional.

A range is one of `Log`, `Uniform`, `Integer`, `Choice` and `OneOf`. An option of `OneOf` may bring
a space of its own, whose names vary only where that option is chosen. So a space is a tree, and a
point holds the names of one branch.

Invariant: no name can occur twice in one point.

This module imports neither ray nor torch.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from govray.governance.formats.bounds import Positive
from govray.train.experiment.sections import Section

_POINTS = Field(None, description="points of a grid, evenly spaced, both ends included")


def _check_range(ends: tuple[float, float]) -> None:
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise ValueError("give [low, high], finite, the low one first")


class Log(Section):
    """A number whose logarithm is uniform."""

    log: tuple[float, float]
    count: Positive | None = _POINTS

    @model_validator(mode="after")
    def _ordered(self) -> Log:
        _check_range(self.log)
        if self.log[0] <= 0:
            raise ValueError("a logarithmic range begins above 0")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return self.log


class Uniform(Section):
    """A number, uniform."""

    uniform: tuple[float, float]
    count: Positive | None = _POINTS

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        _check_range(self.uniform)
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return self.uniform


class Integer(Section):
    """A whole number, uniform, both ends included."""

    int: tuple[builtins.int, builtins.int]
    count: Positive | None = _POINTS

    @model_validator(mode="after")
    def _ordered(self) -> Integer:
        _check_range(self.int)
        return self

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lowest and the highest value."""
        return self.int


class Choice(Section):
    """One of some values."""

    choice: tuple[Any, ...] = Field(min_length=1)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values: none stands for the others."""
        return self.choice


class Option(Section):
    """One value, and what varies with it alone."""

    value: Any
    space: Space = Field(default_factory=dict, exclude_if=lambda value: not value)


class OneOf(Section):
    """One of some options, each with a space of its own."""

    one_of: tuple[Option, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> OneOf:
        for number, value in enumerate(self.ends):
            if value in self.ends[:number]:
                raise ValueError(f"the option {value!r} is there twice")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values: none stands for the others."""
        return tuple(option.value for option in self.one_of)

    def below(self, value: Any) -> Mapping[str, Dimension]:
        """What varies where ``value`` is chosen."""
        return next((each.space for each in self.one_of if each.value == value), {})


def by_key(*keys: str) -> Discriminator:
    """Recognise a section by the one key that it must have."""

    def kind(value: Any) -> str | None:
        found = [k for k in keys if (k in value if isinstance(value, dict) else hasattr(value, k))]
        return found[0] if len(found) == 1 else None

    said = ", ".join(keys)
    return Discriminator(kind, custom_error_type="kind", custom_error_message=f"give one of {said}")


Dimension = Annotated[
    Annotated[Log, Tag("log")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Integer, Tag("int")]
    | Annotated[Choice, Tag("choice")]
    | Annotated[OneOf, Tag("one_of")],
    by_key("log", "uniform", "int", "choice", "one_of"),
]


def _flat(value: Any) -> Any:
    """Nested mappings as dotted names: ``{optimizer: {lr: …}}`` is ``{optimizer.lr: …}``."""
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, below in value.items():
        nested = isinstance(below, dict) and below and all(map(_is_mapping, below.values()))
        for last, each in _flat(below).items() if nested else [("", below)]:
            whole = f"{name}.{last}" if last else name
            if whole in found:
                raise ValueError(f"{whole} is there twice")
            found[whole] = each
    return found


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict | Section)


Space = Annotated[dict[str, Dimension], BeforeValidator(_flat)]
"""Dotted name to range."""

Option.model_rebuild()
OneOf.model_rebuild()


def walk(
    space: Mapping[str, Dimension], given: Mapping[str, Any] | None = None
) -> Iterator[tuple[dict[str, Any], str, Dimension]]:
    """Every range of a tree: the choices that lead to it, its name, and itself; top down."""
    before = dict(given or {})
    for name, dimension in space.items():
        yield before, name, dimension
        if isinstance(dimension, OneOf):
            for option in dimension.one_of:
                yield from walk(option.space, {**before, name: option.value})


def names(space: Mapping[str, Dimension]) -> list[str]:
    """All names of a tree, each once, in its order."""
    return list(dict.fromkeys(name for _, name, _ in walk(space)))


def active(space: Mapping[str, Dimension], point: Mapping[str, Any]) -> dict[str, Dimension]:
    """The ranges of the branch that a point is on, by name."""
    found: dict[str, Dimension] = {}
    for name, dimension in space.items():
        if name in point:
            found[name] = dimension
            if isinstance(dimension, OneOf):
                found |= active(dimension.below(point[name]), point)
    return found


def check_distinct(space: Mapping[str, Dimension]) -> None:
    """Refuse a tree in which a point could hold a name twice."""
    _branch_names(space)


def _branch_names(space: Mapping[str, Dimension]) -> set[str]:
    found: set[str] = set()
    for name, dimension in space.items():
        below = (
            set().union(*(_branch_names(option.space) for option in dimension.one_of))
            if isinstance(dimension, OneOf)
            else set()
        )
        for each in (name, *sorted(below)):
            if each in found or (each == name and each in below):
                raise ValueError(
                    f"space: {each} varies in two places of one trial; put it in one of them"
                )
        found |= {name, *below}
    return found
