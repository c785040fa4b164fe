"""How much better known the rows trained on are than an i.i.d. reserve, at each layer.

A corpus's probe rows and reserve rows were scored by one model (``scores.py``).
Here they become `Measure`s: the means of each side, the deviation of one statistic in
robust units, and a permutation p-value.

The statistics, all turned so that *higher is better known*:

``entropy``    −H
``surprise``   −z
``min_k``      Min-K%++
``composite``  the sum of the three in robust units, weighted by ``WEIGHTS``

The weights are fixed, the same at every layer and for every model; nothing is fitted.

Invariants:

* Means are over rows; the unit that the test relabels is the record.
* Scores of the two sides are put in robust units *together*. So labels have no part in what the
  permutation test is given. Its p is exact where each record has one row, as in a run's profiles.
* The deviation is the difference of means over the reserve's own spread: 1.4826 times
  the median absolute deviation of its rows. Of fewer than ``FEW`` rows that is too small on
  average (.74 of it at four), and near 0 by chance. Then both sides' residuals make the spread. It
  says how large the effect is; p and e say whether it may be chance.
* e is of "the deviation lies in the layer's band", a band's ends being multiples of that spread.
* Equal scores and key give equal measures, bit for bit.

A reserve that is not i.i.d. is not noticed here. A deviation on the first probe, before the corpus
was trained on, shows it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from govray.engine.memorization.permutation_e_value import PERMUTATIONS, e_values, p_values
from govray.engine.memorization.scores import RowScores
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Statistic
from govray.governance.record.e_process import SIDE
from govray.governance.record.entropy_profile import Measure, RowValues, Side

WEIGHTS: Mapping[Statistic, float] = MappingProxyType(
    {"entropy": 0.25, "surprise": 0.5, "min_k": 1.0}
)
"""Of the composite."""

FEW = 16
"""Reserve rows below which both sides make the spread."""

_MAD_TO_SIGMA = 1.4826
_LEAST_SPREAD = 1e-3
"""In a statistic's own unit; smaller spreads are rounding, and would make anything large."""


def components(scores: RowScores, layer: int) -> dict[Statistic, Tensor]:
    """A layer's statistics, higher where better known: each (rows,), float64, on the CPU."""
    return {
        "entropy": -scores.entropy[layer],
        "surprise": -scores.surprise[layer],
        "min_k": scores.min_k[layer],
    }


def composite(parts: Mapping[Statistic, Tensor], reference: Mapping[Statistic, Tensor]) -> Tensor:
    """The weighted sum in robust units of the reference: (rows,), float64, on the CPU.
    ``reference``: the same of the rows whose median and spread are the units."""
    return torch.stack(
        [
            weight * (parts[name] - reference[name].median()) / robust_spread(reference[name])
            for name, weight in WEIGHTS.items()
        ]
    ).sum(0)


def robust_spread(values: Tensor) -> Tensor:
    """Robust standard deviation: 1.4826 · MAD, or the plain one where more than half are equal.

    Args:
        values: (rows,), of a floating dtype.

    Returns:
        Shape (), of the same dtype and device.
    """
    robust = _MAD_TO_SIGMA * (values - values.median()).abs().median()
    if robust < _LEAST_SPREAD:
        robust = values.std(correction=0)
    return robust.clamp_min(_LEAST_SPREAD)


def reserve_spread(probe: Tensor, reserve: Tensor) -> Tensor:
    """The unit of a deviation: the reserve's robust spread, or both sides' where it has few rows.

    Both sides' is 1.4826 times the median size of their residuals from their own medians, times
    √(N/(N-2)) for the two medians that were fitted. Of normal rows, four on either side, its mean
    is .84 of the deviation; with 16 trained rows beside four it is .94.

    Args:
        probe: (rows,), of a floating dtype.
        reserve: (rows,), likewise.

    Returns:
        Shape (), of the same dtype and device.
    """
    if len(reserve) >= FEW:
        return robust_spread(reserve)
    residuals = torch.cat([side - side.quantile(0.5) for side in (probe, reserve)]).abs()
    count = len(residuals)
    unbiased = math.sqrt(count / (count - 2)) if count > 2 else 1.0
    return (_MAD_TO_SIGMA * unbiased * residuals.quantile(0.5)).clamp_min(_LEAST_SPREAD)


def measures(
    corpus: str,
    probe: RowScores,
    reserve: RowScores,
    *,
    probe_units: Sequence[Hashable],
    reserve_units: Sequence[Hashable],
    statistic: Statistic,
    key: Sequence[object],
    permutations: int = PERMUTATIONS,
    bands: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    tested: bool = True,
    row_scores: bool = False,
) -> tuple[Measure, ...]:
    """Compare the two sides at every layer, sorted by layer name.

    Args:
        probe: Scores of rows trained on.
        reserve: Scores of rows never trained on.
        key: What the relabellings are drawn from, beside the corpus: seed and step.
        bands: Layer → ends of its band, in robust units; only these layers get an e-value.
        tested: Whether each record has one row, drawn without regard to its length. Otherwise an
            e-value is 1: the rows are no evidence.
        row_scores: Whether a measure with an e-value keeps the rows' scores too.

    Raises:
        UsageError: A side has no rows, or a record is on both sides. Or records with several rows
            are to be tested.
    """
    if not len(probe) or not len(reserve):
        raise UsageError("a probe needs rows trained on and reserve rows", where=f"corpus {corpus}")
    if both := set(probe_units) & set(reserve_units):
        raise UsageError(
            f"record {min(map(str, both))} is among the rows trained on and in the reserve",
            where=f"corpus {corpus}",
        )
    units = [*probe_units, *reserve_units]
    if bands and tested and len(set(units)) < len(units):
        raise UsageError("an e-value needs one row of each record", where=f"corpus {corpus}")
    columns = []
    for layer in range(len(probe.layers)):
        sides = components(probe, layer), components(reserve, layer)
        if statistic == "composite":
            both_sides = {name: torch.cat([side[name] for side in sides]) for name in WEIGHTS}
            pooled = composite(both_sides, both_sides)
        else:
            pooled = torch.cat([side[statistic] for side in sides])
        columns.append(pooled)
    values = torch.stack(columns, 1)
    ours, theirs = values[: len(probe)], values[len(probe) :]
    found = p_values(
        ours, theirs, probe_units, reserve_units, *key, corpus, permutations=permutations
    )
    spreads = [reserve_spread(ours[:, n], theirs[:, n]) for n in range(len(probe.layers))]
    evidence = _e_values(ours, theirs, spreads, [bands.get(name) for name in probe.layers], tested)
    made = [
        Measure(
            corpus=corpus,
            layer=name,
            probe=_side(probe, layer),
            reserve=_side(reserve, layer),
            deviation=float((ours[:, layer].mean() - theirs[:, layer].mean()) / spreads[layer]),
            p=found[layer],
            permutations=permutations,
            e=evidence[layer],
            scores=_row_values(ours[:, layer], theirs[:, layer], spreads[layer])
            if row_scores and evidence[layer] is not None
            else None,
        )
        for layer, name in enumerate(probe.layers)
    ]
    return tuple(sorted(made, key=lambda each: each.layer))


def _row_values(ours: Tensor, theirs: Tensor, spread: Tensor) -> RowValues:
    """The rows that count for an e-value."""
    return RowValues(
        probe=tuple(ours[:SIDE].tolist()),
        reserve=tuple(theirs[:SIDE].tolist()),
        unit=float(spread),
    )


def _e_values(
    ours: Tensor,
    theirs: Tensor,
    spreads: Sequence[Tensor],
    bands: Sequence[tuple[float, float] | None],
    tested: bool,
) -> list[float | None]:
    """Of each layer that has a band, its ends being in units of the layer's spread."""
    bounded = [layer for layer, band in enumerate(bands) if band is not None]
    found: list[float | None] = [None] * len(bands)
    if not bounded:
        return found
    ends = torch.tensor([bands[layer] for layer in bounded], dtype=torch.float64)
    ends = ends * torch.stack([spreads[layer] for layer in bounded]).unsqueeze(1)
    values = e_values(ours[:, bounded], theirs[:, bounded], ends[:, 0], ends[:, 1]).tolist()
    for layer, e in zip(bounded, values, strict=True):
        found[layer] = e if tested else 1.0
    return found


def _side(scores: RowScores, layer: int) -> Side:
    return Side(
        rows=len(scores),
        entropy=float(scores.entropy[layer].mean()),
        surprise=float(scores.surprise[layer].mean()),
        min_k=float(scores.min_k[layer].mean()),
    )
