"""E-values and permutation tests of a difference of means: exact, or over relabellings drawn.

An e-value is evidence against a hypothesis: never negative, with a mean of at most 1 where the
hypothesis holds. Here T = exp(a·d), d the difference of means in its own null spread, and

    e = T(observed) / mean of T over all relabellings of rows as probe or reserve.

If the two sides are exchangeable every relabelling is as likely as the observed one, so the mean of
e is 1. The rows are one of each record (``data/probe_rows.py``).

T is a product over the probe's rows. So its mean over all relabellings is an elementary symmetric
polynomial e_m(y) over C(N, m). A recurrence gives it in N·m steps.

The hypothesis is a *band*: the difference lies in [low, high]. The probe's rows are moved by an end
of the band first, and then tested in its direction. Moving them back can only lower e. So where the
sides are exchangeable, and 0 lies in the band, the mean of e is at most 1 exactly. It is so also
where an end is a multiple of an estimated spread.

Invariants:

* e is at most C(N, m), the number of relabellings, and at most ``MOST``.
* Neither a generator nor a key has a part in it: equal values give equal e.

Sources: Vovk and Wang 2021, "E-values: Calibration, combination and applications"; Ramdas,
Grünwald, Vovk and Shafer 2023, "Game-theoretic statistics and safe anytime-valid inference",
section 3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from govray.errors import UsageError
from govray.governance.record.e_process import MOST, SIDE

TILTS = (1.0, 2.0, 4.0, 8.0)
"""The a of T: the mean over them is an e-value too, and loses at most log 4 to the best one."""

_FLAT = 1e-300


def e_values(probe: Tensor, reserve: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Evidence that the means' difference, probe less reserve, lies outside [low, high].

    Only the first ``SIDE`` rows of a side count: the recurrence is quadratic.

    Args:
        probe: (rows, statistics), float64, on the CPU; a row for each record.
        reserve: (rows, statistics), likewise.
        low: (statistics,), float64, in the statistics' unit: the band's lower end.
        high: (statistics,), likewise: its upper end.

    Returns:
        (statistics,), float64: the mean of the evidence for "above" and for "below".
    """
    if not len(probe) or not len(reserve):
        raise UsageError("an e-value needs a row on both sides")
    ours, theirs = probe[:SIDE], reserve[:SIDE]
    # Of the unmoved rows, so that the labels have no part in it.
    unmoved = torch.cat([ours, theirs])
    spread = torch.maximum(unmoved.std(0), _least_spread(unmoved))
    above, below = _above(
        torch.stack([ours - high, low - ours], 1), torch.stack([theirs, -theirs], 1), spread
    )
    # A band many times wider than the rows' spread overflows, and there is no evidence then.
    return ((above + below).nan_to_num(0.0) / 2).clamp_max(MOST)


def _least_spread(values: Tensor) -> Tensor:
    """What a standard deviation is at least, also where its squares would be too small to hold."""
    largest = (values - values.mean(0)).abs().amax(0)
    return (largest / math.sqrt(len(values))).clamp_min(_FLAT)


def _above(ours: Tensor, theirs: Tensor, spread: Tensor) -> Tensor:
    """Evidence that ``ours`` is the larger.

    Args:
        ours: (rows, directions, statistics), float64.
        theirs: (rows, directions, statistics), likewise.
        spread: (statistics,), of both sides together.

    Returns:
        (directions, statistics), float64.
    """
    count, all_rows = len(ours), len(ours) + len(theirs)
    values = torch.cat([ours, theirs])
    null_spread = spread * math.sqrt(count * len(theirs) / all_rows)
    values = (values - values.mean(0)) / null_spread
    chosen = values[:count].sum(0)
    if count > len(theirs):  # the same difference, from the smaller side
        values, count = -values, len(theirs)
    tilts = torch.tensor(TILTS, dtype=torch.float64).reshape(-1, 1, 1)
    mean = _mean_of_products((tilts * values.unsqueeze(1)).exp(), count)
    return (tilts * chosen - mean.log()).clamp_max(math.log(MOST)).exp().mean(0)


def _mean_of_products(factors: Tensor, count: int) -> Tensor:
    """The mean, over all sets of ``count`` rows, of the product of their factors.

    It is e_count(factors) / C(rows, count). With ``SIDE`` rows on a side nothing here leaves the
    range of a float64. The log of a product is at most max(TILTS) · √(2·SIDE), which is 181.

    Args:
        factors: (rows, ...), float64, above 0.
        count: Rows of a set, at most all of them.

    Returns:
        (...), float64.
    """
    # means[k]: over the sets of k of the rows seen so far.
    means = factors.new_zeros(count + 1, *factors.shape[1:])
    means[0] = 1.0
    seen = torch.arange(1, len(factors) + 1, dtype=torch.float64).unsqueeze(1)
    # How likely a set of k among the rows seen has the newest one.
    shares = (torch.arange(1, count + 1, dtype=torch.float64) / seen).clamp_max(1.0)
    shares = shares.reshape(*shares.shape, *[1] * (factors.dim() - 1))
    for factor, share in zip(factors, shares, strict=True):
        means[1:] = torch.lerp(means[1:], means[:-1] * factor, share)
    return means[count]


# A permutation test of a difference of means, over exchangeable units.
#
# Under the hypothesis that probe and reserve units come from one distribution, any relabelling of
# them is as likely as the one observed. So the share of relabellings with at least the observed
# difference is a p-value.
#
# The unit is the *record*, not the row: a record's rows keep one label. Rows of one record
# resemble each other, so relabelling rows would find any two sets of records different.
#
# **When p is exact**: at every sample size where each record brings one row, chosen without regard
# to its length, as in a run's profiles. Where rows were sampled instead, one side may hold more
# rows of long records than the other. Then units are not exchangeable, and p is too small wherever
# length and score go together (`python -m benchmarks.null`, ``null_by_rows``).
#
# Invariants:
#
# * p = (1 + #{relabellings with at least the observed difference}) / (1 + relabellings):
#   the observed labelling is one of them, so p is never 0.
# * Two-sided: the difference counts by its size. Its sign is the caller's to read.
# * Relabellings depend on the key alone, and no global generator is read.
#
# Nothing corrects for many tests. If the reserve is not an i.i.d. sample of what the probe was
# drawn from, the test finds that difference.
#
# Source: Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero".


PERMUTATIONS = 1999
"""Relabellings that are drawn: the least p is 1/2000."""

_ROUNDING = 1e-9


def p_values(
    probe: Tensor,
    reserve: Tensor,
    probe_units: Sequence[Hashable],
    reserve_units: Sequence[Hashable],
    *key: object,
    permutations: int = PERMUTATIONS,
) -> list[float]:
    """Two-sided p of "both means over rows are equal", for each statistic.

    Args:
        probe: (rows, statistics), of a floating dtype, on the CPU.
        reserve: (rows, statistics), likewise.
        probe_units: Record of each probe row.
        reserve_units: Record of each reserve row.
        key: What the relabellings are drawn from, such as seed, corpus and step.
        permutations: How many relabellings, at least 1.
    """
    if not len(probe) or not len(reserve):
        raise UsageError("a permutation test needs a row on both sides")
    values = torch.cat([probe, reserve]).double()
    # One size for all columns, so that one allowance for rounding does for ties.
    values = values - values.mean(0)
    values = values / values.abs().amax(0).clamp_min(1e-300)
    ours = _unit_sums(values[: len(probe)], probe_units)
    theirs = _unit_sums(values[len(probe) :], reserve_units)
    units = torch.cat([ours, theirs])
    order = torch.rand(permutations, len(units), generator=_generator(*key)).argsort(1)
    labels = torch.zeros(permutations, len(units), dtype=torch.float64)
    labels.scatter_(1, order[:, : len(ours)], 1.0)
    observed = _difference(ours.sum(0, keepdim=True), theirs.sum(0, keepdim=True))
    as_large = (_difference(labels @ units, (1 - labels) @ units) >= observed - _ROUNDING).sum(0)
    return [(1 + count) / (1 + permutations) for count in as_large.tolist()]


def _unit_sums(values: Tensor, units: Sequence[Hashable]) -> Tensor:
    """Sums over each unit's rows, and in the last column their number."""
    places = {unit: place for place, unit in enumerate(dict.fromkeys(units))}
    index = torch.tensor([places[unit] for unit in units], dtype=torch.int64)
    counted = torch.cat([values, values.new_ones(len(values), 1)], 1)
    return values.new_zeros(len(places), counted.shape[1]).index_add_(0, index, counted)


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """How far the means over rows are apart, from sums and, last, numbers of rows."""
    return (one[:, :-1] / one[:, -1:] - other[:, :-1] / other[:, -1:]).abs()


def _generator(*key: object) -> torch.Generator:
    text = "\0".join(map(str, ("govray permutation", *key)))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(seed)
