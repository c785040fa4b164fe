"""Bands from what clean corpora measured: median ± k·MAD of their deviations, at each layer.

The corpora are public ones that nobody claims were memorized, over many checkpoints of runs with
the same statistic. What lies outside the bands is unlike them; that is all that a band says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from govray.errors import Refused, UsageError
from govray.governance.policy.memorization_section import CALIBRATED, Band
from govray.governance.record.entropy_profile import EntropyProfile

LEAST = 8
"""Deviations of a layer, below which its median and MAD say little."""

DEFAULT_K = 5.0
"""Half the width of a band in MADs: about 3.4 standard deviations of normal deviations."""

_PLACE = re.compile(rf"^(?P<indent>[ ]+)bands:[ ]+{CALIBRATED}[ ]*(?P<comment>#.*)?$", re.M)


@dataclass(frozen=True)
class Calibrated:
    """The band of one layer, and what it rests on.
    ``band``: both ends rounded outward to three decimals."""

    band: Band
    median: float
    mad: float
    measures: int
    corpora: int


def calibrate(
    runs: Iterable[tuple[Iterable[EntropyProfile], Collection[str]]], *, k: float = DEFAULT_K
) -> dict[str, Calibrated]:
    """Layer → band, sorted by layer.

    Args:
        runs: The profiles of each run, and the corpora of it that count.
        k: Half the width of a band, in MADs.
    """
    if not k > 0:
        raise UsageError(f"k is {k}", where="--k", do="Give a number above 0")
    deviations: dict[str, list[float]] = {}
    owners: dict[str, set[tuple[int, str]]] = {}
    statistics = set()
    for number, (profiles, clean) in enumerate(runs):
        for profile in profiles:
            statistics.add(profile.statistic)
            for measure in profile.measures:
                if measure.corpus in clean:
                    deviations.setdefault(measure.layer, []).append(measure.deviation)
                    owners.setdefault(measure.layer, set()).add((number, measure.corpus))
    if len(statistics) > 1:
        raise UsageError(
            f"the runs measured {' and '.join(sorted(statistics))}",
            do="Calibrate from runs whose policies name one statistic",
        )
    if not deviations:
        raise Refused(
            "the runs measured no clean public corpus",
            do="Run under a policy whose memorization section has wide bands, and only flags",
        )
    found = {}
    for layer, values in sorted(deviations.items()):
        if len(values) < LEAST:
            raise Refused(
                f"{len(values)} measures, of {LEAST} that a band needs",
                where=f"layer {layer}",
                do="Add runs, or probe more often",
            )
        middle = median(values)
        mad = median(abs(value - middle) for value in values)
        low, high = middle - k * mad, middle + k * mad
        band = Band(low=_outward(low, -1), high=_outward(high, 1))
        found[layer] = Calibrated(band, middle, mad, len(values), len(owners[layer]))
    return found


def into_source(text: str, bands: Mapping[str, Band], *, where: str) -> str:
    """A policy's source with these bands in the place of ``bands: calibrated``; all else stays."""
    places = list(_PLACE.finditer(text))
    if len(places) != 1:
        raise UsageError(
            f"it says `bands: {CALIBRATED}` {len(places)} times on a line of its own, not once",
            where=where,
            do=f"Write `bands: {CALIBRATED}` into its memorization section",
        )
    [place] = places
    indent = place["indent"]
    lines = [f"{indent}bands:"]
    lines += [
        f'{indent}  "{layer}": [{band.low:g}, {band.high:g}]' for layer, band in bands.items()
    ]
    return text[: place.start()] + "\n".join(lines) + text[place.end() :]


def _outward(value: float, direction: int) -> float:
    rounded = round(value, 3)
    return rounded if (rounded - value) * direction >= 0 else round(rounded + direction * 1e-3, 3)
