"""How many of the best known records were trained on, at each layer.

A corpus's probe rows and reserve rows were scored by one model (``scores.py``). A record's score is
the mean of its rows'. Here they become `Measure`s: the means of each side, and the counts that
evidence follows from.

The statistics, all turned so that *higher is better known*:

``entropy``    −H
``surprise``   −z
``min_k``      Min-K%++
``composite``  the sum of the three in robust units, weighted by ``WEIGHTS``

The weights are fixed, the same at every layer and for every model; nothing is fitted.

Invariants:

* The sides have no part in a record's score: both are put in robust units *together*.
* Nor have they in ties: a hash of the key, the corpus and the record decides.
* Equal scores and key give equal measures, bit for bit.

A reserve that is not i.i.d. is not noticed here. An effect in the first profile, before the corpus
was trained on, shows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from govray.engine.memorization.scores import RowScores
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Statistic
from govray.governance.record.entropy_profile import Measure, Side
from govray.governance.record.rank_evidence import top_sizes

WEIGHTS: Mapping[Statistic, float] = MappingProxyType(
    {"entropy": 0.25, "surprise": 0.5, "min_k": 1.0}
)
"""Of the composite."""

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


def measures(
    corpus: str,
    probe: RowScores,
    reserve: RowScores,
    *,
    probe_units: Sequence[Hashable],
    reserve_units: Sequence[Hashable],
    statistic: Statistic,
    key: Sequence[object],
    tested: bool = True,
) -> tuple[Measure, ...]:
    """Compare the two sides at every layer, sorted by layer name.

    Args:
        probe: Scores of rows trained on.
        reserve: Scores of rows never trained on.
        probe_units: Record of each probe row.
        reserve_units: Record of each reserve row.
        key: What ties are broken by, beside corpus and record: seed and step.
        tested: Whether records were drawn without regard to their lengths. Others are no evidence.

    Raises:
        UsageError: A side has no rows, or a record is on both sides.
    """
    if not len(probe) or not len(reserve):
        raise UsageError("a probe needs rows trained on and reserve rows", where=f"corpus {corpus}")
    if both := set(probe_units) & set(reserve_units):
        raise UsageError(
            f"record {min(map(str, both))} is among the rows trained on and in the reserve",
            where=f"corpus {corpus}",
        )
    probe, reserve = _by_record(probe, probe_units), _by_record(reserve, reserve_units)
    units = [*dict.fromkeys(probe_units), *dict.fromkeys(reserve_units)]
    order = sorted(range(len(units)), key=lambda unit: _tie(*key, corpus, units[unit]))
    trained = torch.tensor([unit < len(probe) for unit in order])
    sizes = top_sizes(len(units))
    made = []
    for layer, name in enumerate(probe.layers):
        parts = {
            each: torch.cat([side, components(reserve, layer)[each]])
            for each, side in components(probe, layer).items()
        }
        values = composite(parts, parts) if statistic == "composite" else parts[statistic]
        best = trained[values[order].argsort(descending=True, stable=True)].cumsum(0).tolist()
        made.append(
            Measure(
                corpus=corpus,
                layer=name,
                probe=_side(probe, layer),
                reserve=_side(reserve, layer),
                top=tuple(best[size - 1] for size in sizes),
                tested=tested,
            )
        )
    return tuple(sorted(made, key=lambda each: each.layer))


def _by_record(scores: RowScores, units: Sequence[Hashable]) -> RowScores:
    """The mean scores of each record's rows, records in the order of their first."""
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
    if len(numbers) == len(units):
        return scores
    owners = torch.tensor([numbers[unit] for unit in units])
    table = torch.zeros(len(numbers), scores.table().shape[1], dtype=torch.float64)
    table.index_add_(0, owners, scores.table())
    return RowScores.of_table(scores.layers, table / owners.bincount().unsqueeze(1))


def _tie(*key: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, ("govray tie", *key))).encode()).digest()


def _side(scores: RowScores, layer: int) -> Side:
    return Side(
        records=len(scores),
        entropy=float(scores.entropy[layer].mean()),
        surprise=float(scores.surprise[layer].mean()),
        min_k=float(scores.min_k[layer].mean()),
    )
