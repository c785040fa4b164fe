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
from govray.tune.search_config import Choice, Dimension, Integer, Log, Search, Uniform

Point = dict[str, Any]


def draw(space: Mapping[str, Dimension], seed: int, number: int) -> Point:
    """The point of trial ``number``, which counts from 0."""
    return {
        name: _draw(dimension, random.Random(f"{seed}/{number}/{name}"))  # noqa: S311
        for name, dimension in space.items()
    }


def _draw(dimension: Dimension, random_: random.Random) -> Any:
    match dimension:
        case Log(log=(low, high)):
            return _within(math.exp(random_.uniform(math.log(low), math.log(high))), low, high)
        case Uniform(uniform=(low, high)):
            return random_.uniform(low, high)
        case Integer(int=(low, high)):
            return random_.randint(low, high)
        case Choice(choice=values):
            return random_.choice(values)


def grid_size(search: Search) -> int:
    """How many points the grid of a search has.

    Raises:
        UsageError: A range of numbers has no ``count``; more points than ``max_trials``.
    """
    sizes = [_size(name, dimension) for name, dimension in search.space.items()]
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
    axes = [list(_axis(dimension)) for dimension in search.space.values()]
    for values in itertools.product(*axes):
        yield dict(zip(search.space, values, strict=True))


def _size(name: str, dimension: Dimension) -> int:
    match dimension:
        case Choice(choice=values):
            return len(values)
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
    if isinstance(dimension, Choice):
        yield from dimension.choice
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
