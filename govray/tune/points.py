"""The points of a search: what each trial draws, independent of the others.

The value that a trial draws for a name depends only on the search's seed, the trial's number and
the name. Another dimension, another length or a resumed search changes no draw.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from govray.errors import UsageError
from govray.tune.search_config import Search
from govray.tune.space import Choice, Dimension, Integer, Log, OneOf, Uniform

Point = dict[str, Any]


def draw(space: Mapping[str, Dimension], seed: int, number: int) -> Point:
    """The point of trial ``number``, which counts from 0."""
    point: Point = {}
    for name, dimension in space.items():
        point[name] = draw_one(dimension, random.Random(f"{seed}/{number}/{name}"))  # noqa: S311
        if isinstance(dimension, OneOf):
            point |= draw(dimension.below(point[name]), seed, number)
    return point


def draw_one(dimension: Dimension, random_: random.Random) -> Any:
    match dimension:
        case Log(log=(low, high)):
            return _within(math.exp(random_.uniform(math.log(low), math.log(high))), low, high)
        case Uniform(uniform=(low, high)):
            return random_.uniform(low, high)
        case Integer(int=(low, high)):
            return random_.randint(low, high)
        case Choice(choice=values):
            return random_.choice(values)
        case OneOf():
            return random_.choice(dimension.ends)


def grid_size(search: Search) -> int:
    """How many points the grid of a search has. Raises `UsageError`: a range of numbers has no
    ``count``; more points than ``max_trials``."""
    sizes = [_points(name, dimension) for name, dimension in search.space.items()]
    if math.prod(sizes) > search.max_trials:
        raise UsageError(
            f"a grid of {' x '.join(map(str, sizes))} = {math.prod(sizes)} points is more than "
            f"max_trials {search.max_trials}",
            where="search.space",
            do="Raise max_trials, or give fewer values",
        )
    return math.prod(sizes)


def grid(search: Search) -> Iterator[Point]:
    """Every combination, the last name varying fastest; raises as `grid_size`."""
    grid_size(search)
    yield from _combinations(search.space)


def _combinations(space: Mapping[str, Dimension]) -> Iterator[Point]:
    axes = [list(_steps(name, dimension)) for name, dimension in space.items()]
    for parts in itertools.product(*axes):
        yield {name: value for part in parts for name, value in part.items()}


def _steps(name: str, dimension: Dimension) -> Iterator[Point]:
    """What one range adds to a point: its own value, and those of the branch below it."""
    for value in _axis(dimension):
        below = dimension.below(value) if isinstance(dimension, OneOf) else {}
        for rest in _combinations(below):
            yield {name: value, **rest}


def _points(name: str, dimension: Dimension) -> int:
    if not isinstance(dimension, OneOf):
        return _size(name, dimension)
    return sum(
        math.prod(_points(each, below) for each, below in option.space.items())
        for option in dimension.one_of
    )


def _size(name: str, dimension: Dimension) -> int:
    match dimension:
        case Choice(choice=values):
            return len(values)
        case OneOf():
            return len(dimension.one_of)
        case Integer(int=(low, high)):
            return min(dimension.count or math.inf, high - low + 1)  # type: ignore[return-value]
        case _ if dimension.count:
            return dimension.count
    raise UsageError(
        f"{name}: a grid has no end here",
        where="search.space",
        do="Give the range a count, such as {log: [1.0e-4, 1.0e-2], count: 3}",
    )


def _axis(dimension: Dimension) -> Iterator[Any]:
    if isinstance(dimension, Choice | OneOf):
        yield from dimension.ends
        return
    low, high = dimension.ends
    count = _size("", dimension)
    for i in range(count):
        share = i / (count - 1) if count > 1 else 0.5
        match dimension:
            case Log():
                yield high if share == 1 else low * (high / low) ** share
            case Uniform():
                yield high if share == 1 else low + share * (high - low)
            case Integer():
                yield low + round(share * (high - low))


def _within(value: float, low: float, high: float) -> float:
    """``value``, clipped to the range: rounding may have carried it over an end."""
    return min(max(value, low), high)
