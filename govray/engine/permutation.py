"""A permutation test of a difference of means, over exchangeable units.

Under the hypothesis that probe and reserve units come from one distribution, any
relabelling of them is as likely as the one observed. So the share of relabellings with
at least the observed difference is a p-value, exact at every sample size.

The unit is the *record*, not the row: rows of one record resemble each other, so
relabelling rows would call any two sets of records different. Rows of a record are
averaged first (`unit_means`).

Invariants:

* p = (1 + #{relabellings with at least the observed difference}) / (1 + relabellings):
  the observed labelling is one of them, so p is never 0.
* Two-sided: the difference counts by its size. Its sign is the caller's to read.
* Relabellings depend on the key alone, and no global generator is read.

What it does not do: correct for many tests, or repair a reserve that is not an i.i.d.
sample of what the probe was drawn from. Then it finds that difference.

Source: Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero".
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from govray.errors import UsageError

PERMUTATIONS = 1999
"""Relabellings that are drawn: the least p is 1/2000."""

_ROUNDING = 1e-9


def unit_means(values: Tensor, units: Sequence[Hashable]) -> Tensor:
    """Average the rows of each unit.

    Args:
        values: (rows, statistics).
        units: Of each row.

    Returns:
        (units, statistics), float64, in order of first appearance.
    """
    places = {unit: place for place, unit in enumerate(dict.fromkeys(units))}
    index = torch.tensor([places[unit] for unit in units], dtype=torch.int64)
    wide = values.double().cpu()
    sums = torch.zeros(len(places), wide.shape[1], dtype=torch.float64).index_add_(0, index, wide)
    return sums / torch.bincount(index, minlength=len(places)).unsqueeze(1)


def p_values(
    probe: Tensor, reserve: Tensor, *key: object, permutations: int = PERMUTATIONS
) -> list[float]:
    """Two-sided p of "both means are equal", for each statistic.

    Args:
        probe: (units, statistics).
        reserve: (units, statistics).
        key: What the relabellings are drawn from, such as seed, corpus and step.
        permutations: How many relabellings, at least 1.

    Raises:
        UsageError: A side has no unit.
    """
    if not len(probe) or not len(reserve):
        raise UsageError("a permutation test needs a unit on both sides")
    values = torch.cat([probe, reserve]).double()
    # One size for all columns, so that one allowance for rounding does for ties.
    values = values - values.mean(0)
    values = values / values.abs().amax(0).clamp_min(1e-300)
    order = torch.rand(permutations, len(values), generator=_generator(*key)).argsort(1)
    labels = torch.zeros(permutations, len(values), dtype=torch.float64)
    labels.scatter_(1, order[:, : len(probe)], 1.0)
    # The overall mean is 0 and both sizes are fixed, so the difference of means is
    # proportional to this sum.
    observed = values[: len(probe)].sum(0).abs()
    as_large = ((labels @ values).abs() >= observed - _ROUNDING).sum(0)
    return [(1 + count) / (1 + permutations) for count in as_large.tolist()]


def _generator(*key: object) -> torch.Generator:
    text = "\0".join(map(str, ("govray permutation", *key)))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(seed)
