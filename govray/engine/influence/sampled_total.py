"""A corpus's total from some of its records, and how far the choice of records moves it.

A record brings a value and a size, here an estimate and the loss targets that were read of it. With
records of very different sizes the mean of values is poor, so the total is a ratio:

    total  =  size of all  ·  Σ value / Σ size        over the records that were looked at.

The interval is a bootstrap over records, narrowed by √(1 − looked at / all): who looked at all of
them has no error of this kind. It says nothing of other errors.

Invariants: the order of records does not matter. The total is linear in the values.

Source: Cochran 1977, "Sampling Techniques", §2.6 and ch. 6; Efron and Tibshirani 1993, "An
Introduction to the Bootstrap", ch. 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class SampledTotal:
    """A total, and what it is over resampled records.

    Attributes:
        value: The total.
        draws: The same of each resample, (DRAWS,), float64; narrowed as the module says.
    """

    value: float
    draws: Tensor

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval, which holds the total."""
        tail = (1 - LEVEL) / 2
        ends = torch.tensor([tail, 1 - tail], dtype=torch.float64)
        low, high = torch.quantile(self.draws, ends).tolist()
        return min(low, self.value), max(high, self.value)

    @classmethod
    def exactly(cls, value: float) -> SampledTotal:
        """A total that rests on no sample."""
        return cls(value, torch.full((DRAWS,), value, dtype=torch.float64))

    @classmethod
    def sum(cls, parts: Iterable[SampledTotal]) -> SampledTotal:
        """The sum of totals of independent samples; 0 of none."""
        found = cls.exactly(0.0)
        for part in parts:
            found = cls(found.value + part.value, found.draws + part.draws)
        return found


def sampled_total(
    values: Sequence[float], sizes: Sequence[float], *, size: float, share: float, seed: int
) -> SampledTotal:
    """The total over all records of a corpus.

    Args:
        values: Of each record that was looked at; at least one.
        sizes: Of each of them, above 0.
        size: Of all records.
        share: Looked at among all, in (0, 1].
        seed: Of the bootstrap's own generator.

    Raises:
        ValueError: There are no records, or not equally many values and sizes.
    """
    if len(values) != len(sizes) or not values:
        raise ValueError("each record has a value and a size, and there is at least one")
    pairs = sorted(zip(values, sizes, strict=True))  # so that their order does not matter
    value, weight = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    total = size * math.fsum(values) / math.fsum(sizes)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(pairs), (DRAWS, len(pairs)), generator=generator)
    draws = size * value[drawn].sum(1) / weight[drawn].sum(1)
    return SampledTotal(total, total + (draws - total) * math.sqrt(max(0.0, 1 - share)))
