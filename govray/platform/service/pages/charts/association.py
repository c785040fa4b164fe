"""How strongly each hyperparameter of a search goes with its result, over its trials. Pure.

A number is measured by the absolute Spearman correlation (1904). That is Pearson's correlation of
the ranks, where equal values have the mean of theirs. It is 1 where the result only rises, or only
falls, with the parameter. It may be 0 for one whose best value lies in the middle. Anything else is
a category. It is measured by eta squared of the result's ranks: the share of their variance that
lies between categories.

Neither says what causes what: a search draws some points more often, and parameters go together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FEWEST = 5
"""Trials; below, any two columns look alike."""


@dataclass(frozen=True)
class Association:
    """One hyperparameter. ``strength`` is in [0, 1]; None where it cannot be measured.

    Attributes:
        trials: Those that have both the parameter and a finite result.
        rises: Whether the result rises with a numeric parameter.
    """

    name: str
    measure: Literal["spearman", "eta2"]
    strength: float | None
    trials: int
    rises: bool | None = None


def associations(
    trials: Iterable[tuple[Mapping[str, Any], float | None]],
) -> list[Association]:
    """Of each hyperparameter that varies, the strongest first.

    Args:
        trials: The hyperparameters of each trial, and its result.
    """
    known = [(values, y) for values, y in trials if y is not None and math.isfinite(y)]
    names = sorted({name for values, _ in known for name in values})
    found = []
    for name in names:
        pairs = [(values[name], y) for values, y in known if values.get(name) is not None]
        if len({str(value) for value, _ in pairs}) > 1:
            found.append(_association(name, pairs))
    return sorted(found, key=lambda each: (-(each.strength if each.strength is not None else -1),))


def _association(name: str, pairs: Sequence[tuple[Any, float]]) -> Association:
    values, results = [value for value, _ in pairs], ranks([y for _, y in pairs])
    if all(_number(value) for value in values):
        rho = correlation(ranks([float(value) for value in values]), results)
        measured = len(pairs) >= FEWEST and rho is not None
        return Association(
            name,
            "spearman",
            abs(rho) if measured and rho is not None else None,
            len(pairs),
            rho > 0 if measured and rho else None,
        )
    strength = between([str(value) for value in values], results)
    return Association(name, "eta2", strength if len(pairs) >= FEWEST else None, len(pairs))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1; equal ones have the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            found[place] = (at + end) / 2 + 1
        at = end + 1
    return found


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's correlation; None if either does not vary."""
    count = len(one)
    mean_one, mean_other = sum(one) / count, sum(other) / count
    away_one = [value - mean_one for value in one]
    away_other = [value - mean_other for value in other]
    spread = math.sqrt(sum(a * a for a in away_one) * sum(b * b for b in away_other))
    if spread == 0:
        return None
    return sum(a * b for a, b in zip(away_one, away_other, strict=True)) / spread


def between(categories: Sequence[str], values: Sequence[float]) -> float | None:
    """Eta squared: the share of the variance between categories; None if nothing varies.

    None too if every value has a category of its own: then the share is 1 whatever the values are.
    """
    mean = sum(values) / len(values)
    whole = sum((value - mean) ** 2 for value in values)
    groups: dict[str, list[float]] = {}
    for category, value in zip(categories, values, strict=True):
        groups.setdefault(category, []).append(value)
    if whole == 0 or len(groups) == len(values):
        return None
    apart = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
    return apart / whole
