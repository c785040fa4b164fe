"""A permutation test of a difference of means, over exchangeable units.

Under the hypothesis that probe and reserve units come from one distribution, any
relabelling of them is as likely as the one observed. So the share of relabellings with
at least the observed difference is a p-value.

The unit is the *record*, not the row: a record's rows keep one label. Rows of one record resemble
each other, so relabelling rows would find any two sets of records different.

**When p is exact**: at every sample size where each record brings one row, chosen without regard to
its length, as in a run's profiles. Where rows were sampled instead, one side may hold more rows of
long records than the other. Then units are not exchangeable, and p is too small wherever length and
score go together (`python -m benchmarks.null`, ``null_by_rows``).

Invariants:

* p = (1 + #{relabellings with at least the observed difference}) / (1 + relabellings):
  the observed labelling is one of them, so p is never 0.
* Two-sided: the difference counts by its size. Its sign is the caller's to read.
* Relabellings depend on the key alone, and no global generator is read.

Nothing corrects for many tests. If the reserve is not an i.i.d. sample of what the probe was drawn
from, the test finds that difference.

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
