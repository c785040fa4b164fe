"""Evidence that records trained on are better known than held-back ones: from ranks alone.

Scores of both sides are ranked together. Of the j best, K are records that were trained on. The
hypothesis has a tolerance, an *odds ratio*. A record trained on has at most so many times the odds
of a held-back one to score above any threshold. Then K is at most what Fisher's noncentral
hypergeometric law says. An *e-value* is evidence against a hypothesis: never negative, with a mean
of at most 1 where the hypothesis holds. A likelihood ratio of that law against larger odds is one,
as it grows with K. So is a mean of such ratios over several j.

Why the law is a bound, exactly and for any scores. K grows with the scores of one side. So the
worst case has the odds ratio at every threshold, and then ranks don't depend on how scores are
distributed. Given where the j-th best score lies, K has Fisher's law, weighted by how likely a
record of either side scores just there. Relative to those above, that is less likely for records
trained on. So the weight falls with K.

Invariants

* One-sided: that records trained on are less well known is no evidence.
* No spread is estimated. How far out a record scores doesn't matter, only whether above others.
* Equal counts give the same e-value, bit for bit, on every machine: run and verifier derive it. So
  it is computed in decimals, which no machine's libm rounds.

Sources: Fisher 1935, "The logic of inductive inference"; Vovk and Wang 2021, "E-values:
Calibration, combination and applications".
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from functools import cache, lru_cache

from govray.errors import Refused

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Of both sides' records: the best of these are looked at. A small part of a corpus that is known
well shows in the first, a little of all of it in the half. Where few records are held back, the
last ones show that these are hardly among the best."""

TILTS = (0.5, 1.0, 2.0, 4.0)
"""Logs of how much larger the odds are that evidence is for."""

MOST = 1e12
"""No e-value is larger: as evidence it is enough, and canonical JSON has its number."""

_DECIMALS = Context(prec=28)
_STEPS = 32
"""Bounds of odds are told in steps of 2^(1/32), so about 2 % apart."""
_LARGEST = 30 * _STEPS


@cache
def top_sizes(total: int) -> tuple[int, ...]:
    """How many records are the best of so many, for each of `FRACTIONS`."""
    return tuple(max(1, round(fraction * total)) for fraction in FRACTIONS)


def check_counts(trained: int, held: int, counts: Sequence[int]) -> None:
    """Raises ``Refused`` where no ranking of so many records has these counts.

    Args:
        trained: Records that were trained on.
        held: Records that were held back.
        counts: How many of the best were trained on, for each of `FRACTIONS`.
    """
    sizes = top_sizes(trained + held)
    possible = min(trained, held) >= 1 and len(counts) == len(sizes)
    before, smaller = 0, 0
    for count, size in zip(counts, sizes, strict=False):
        # Those added are of either side, and no side has more than all of its records.
        possible &= 0 <= count - before <= size - smaller and size - held <= count <= trained
        before, smaller = count, size
    if not possible:
        raise Refused(
            f"among the {', '.join(map(str, sizes))} best of {trained} records trained on and "
            f"{held} held back, {', '.join(map(str, counts))} cannot be ones trained on"
        )


def e_value(trained: int, held: int, counts: Sequence[int], odds: float) -> float:
    """Evidence that records trained on have more than ``odds`` times the odds of the others.

    Args:
        trained: Records that were trained on.
        held: Records that were held back.
        counts: How many of the best were trained on, for each of `FRACTIONS`.
        odds: The tolerance; at 1 the question is whether there is any effect.
    """
    return _e_value(trained, held, tuple(counts), odds)


@lru_cache(maxsize=1 << 16)
def _e_value(trained: int, held: int, counts: tuple[int, ...], odds: float) -> float:
    # Decisions ask for each measure of a run again and again.
    check_counts(trained, held, counts)
    with localcontext(_DECIMALS):
        ratios = [
            factor**count / mean
            for size, count in zip(top_sizes(trained + held), counts, strict=True)
            for factor, mean in zip(_factors(), _means(trained, held, size, odds), strict=True)
        ]
        return float(min(sum(ratios, Decimal()) / len(ratios), Decimal(MOST)))


def most(trained: int, held: int, odds: float) -> float:
    """The largest e-value that so many records can give."""
    best = [min(size, trained) for size in top_sizes(trained + held)]
    return e_value(trained, held, best, odds)


def least_odds(
    trained: int, held: int, counts_of_layers: Sequence[Sequence[int]], level: float
) -> float:
    """A lower confidence bound of the odds ratio; 1 where no effect shows.

    The largest odds that the mean e-value of these layers still rejects at the level. In at most
    ``level`` of all cases it is larger than the true odds ratio.
    """

    def rejects(step: int) -> bool:
        found = [e_value(trained, held, each, _odds(step)) for each in counts_of_layers]
        return sum(found) >= len(found) / level

    # Evidence falls as odds grow, so the steps that are rejected are the first ones.
    low, high = -1, _LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return _odds(max(low, 0))


def _odds(step: int) -> float:
    return round(2 ** (step / _STEPS), 3)


@cache
def _factors() -> tuple[Decimal, ...]:
    return tuple(Decimal(tilt).exp(_DECIMALS) for tilt in TILTS)


@lru_cache(maxsize=1 << 14)
def _means(trained: int, held: int, size: int, odds: float) -> tuple[Decimal, ...]:
    """The mean of each factor to the power of K, under Fisher's law."""
    with localcontext(_DECIMALS):
        ways, least = _ways(trained, held, size), max(0, size - held)

        def total(odds: Decimal) -> Decimal:
            found = Decimal()
            for each in ways:
                found = found * odds + each
            return found

        whole = total(Decimal(odds))
        return tuple(factor**least * total(Decimal(odds) * factor) / whole for factor in _factors())


@lru_cache(maxsize=1 << 10)
def _ways(trained: int, held: int, size: int) -> tuple[Decimal, ...]:
    """In how many ways K records trained on are among the best, from the largest K on; relative to
    the smallest."""
    with localcontext(_DECIMALS):
        found = [Decimal(1)]
        for k in range(max(0, size - held), min(size, trained)):
            more = Decimal((trained - k) * (size - k)) / ((k + 1) * (held - size + k + 1))
            found.append(found[-1] * more)
        return tuple(reversed(found))
