"""E-values of a difference of means, exact: over every relabelling, without drawing any.

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

import math

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
