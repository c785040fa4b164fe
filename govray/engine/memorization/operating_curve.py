"""What a monitor would have decided in other bands: the curve that a policy's band is a point of.

A run whose policy asks for ``row_scores`` keeps each row's score in its profiles. The e-value of
any band follows from these, and the decisions from the e-values, as in a run
(``governance/record/incidents.py``).
All bands here are [-w, w], w in robust units; 0 asks whether there is any difference.

The run must only have flagged: what a gate or rollback leaves out is not read on, so other bands
would have seen other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from govray.engine.memorization.permutation_e_value import e_values
from govray.errors import Refused
from govray.governance.policy.memorization_section import Band, Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, Measure, MonitoredCorpus
from govray.governance.record.incidents import Incidents

HALF_WIDTHS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""What a curve is drawn at by default."""

_EQUAL = 1e-6
"""Relative, between an e-value that was recorded and the same one computed again elsewhere."""


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A run that kept its row scores.

    Attributes:
        subjects: Corpus → what policy and routes say of it.
        profiles: In the ledger's order.
        clean: Corpora of it whose flags are false.
    """

    section: Monitoring
    subjects: Mapping[str, MonitoredCorpus]
    profiles: Sequence[EntropyProfile]
    clean: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One band.

    Attributes:
        half_width: Of the band, in robust units.
        false_flags: Clean corpora flagged, over all runs.
        clean: Clean corpora that could have been flagged, over all runs.
        runs: How many.
        until: Any other corpus → of each run that measured it, its profiles up to the one that
            flagged it; None where none did.
    """

    half_width: float
    false_flags: int
    clean: int
    runs: int
    until: Mapping[str, tuple[int | None, ...]]


def curve(runs: Sequence[ObservedRun], half_widths: Sequence[float]) -> tuple[Point, ...]:
    """A point for each half width, in the given order. Raises ``Refused``: a profile has no row
    scores, or its e-values do not follow from them. Or the policy of a run does more than flag."""
    flagged: list[list[dict[str, int]]] = [[] for _ in half_widths]
    for run in runs:
        for place, each in enumerate(flagged_at(run, half_widths)):
            flagged[place].append(each)
    return tuple(
        _point(runs, found, width) for width, found in zip(half_widths, flagged, strict=True)
    )


def flagged_at(run: ObservedRun, half_widths: Sequence[float]) -> list[dict[str, int]]:
    """Of each half width: corpus → its profiles up to the one that flags it."""
    _check_actions(run)
    bands = [Band(low=-width, high=width) for width in half_widths]
    told = [Incidents(_in(run.section, band), run.subjects) for band in bands]
    seen: dict[str, int] = {}
    flagged: list[dict[str, int]] = [{} for _ in bands]
    for profile in run.profiles:
        for corpus in profile.corpora:
            seen[corpus] = seen.get(corpus, 0) + 1
        for place, moved in enumerate(_in_bands(profile, run.section, half_widths)):
            for decision in told[place].take(moved):
                flagged[place].setdefault(decision.corpus, seen[decision.corpus])
    return flagged


def _in(section: Monitoring, band: Band) -> Monitoring:
    return section.model_copy(update={"bands": dict.fromkeys(section.bands, band)})


def _point(
    runs: Sequence[ObservedRun], flagged: Sequence[Mapping[str, int]], half_width: float
) -> Point:
    false_flags = clean = 0
    until: dict[str, list[int | None]] = {}
    for run, found in zip(runs, flagged, strict=True):
        measured = {corpus for profile in run.profiles for corpus in profile.corpora}
        for corpus in sorted(measured & run.subjects.keys()):
            if corpus not in run.clean:
                until.setdefault(corpus, []).append(found.get(corpus))
            elif run.subjects[corpus].profiles:
                clean += 1
                false_flags += corpus in found
    return Point(
        half_width=half_width,
        false_flags=false_flags,
        clean=clean,
        runs=len(runs),
        until={corpus: tuple(each) for corpus, each in until.items()},
    )


def _in_bands(
    profile: EntropyProfile, section: Monitoring, half_widths: Sequence[float]
) -> list[EntropyProfile]:
    """The profile as it would stand under policies with these bands."""
    moved: list[list[Measure]] = [[] for _ in half_widths]
    for corpus in sorted(profile.corpora):
        measures = profile.of(corpus)
        bounded = [each for each in measures if section.band(each.layer) is not None]
        found = _evidence(bounded, section, half_widths, f"entropy profile, step {profile.step}")
        for place, into in enumerate(moved):
            e_by_layer = found[place]
            into += [
                each.model_copy(update={"e": e_by_layer[each.layer]})
                if each.layer in e_by_layer
                else each
                for each in measures
            ]
    # Made anew: a copy would keep what the profile remembers of its own measures.
    return [
        EntropyProfile(
            branch=profile.branch,
            step=profile.step,
            statistic=profile.statistic,
            measures=tuple(each),
        )
        for each in moved
    ]


def _evidence(
    measures: Sequence[Measure], section: Monitoring, half_widths: Sequence[float], where: str
) -> list[dict[str, float]]:
    """Of each half width: layer → e-value, of the measures of one corpus."""
    columns: list[tuple[tuple[float, ...], tuple[float, ...], float, float]] = []
    for each in measures:
        band = section.band(each.layer)
        if each.scores is None or band is None:
            raise Refused(
                f"corpus {each.corpus} has no row scores at {each.layer}",
                where=where,
                do="Run under a policy whose memorization section has `row_scores: true`",
            )
        for low, high in (band, *((-width, width) for width in half_widths)):
            unit = each.scores.unit
            columns.append((each.scores.probe, each.scores.reserve, low * unit, high * unit))
    if not columns:
        return [{} for _ in half_widths]
    probe, reserve, lows, highs = (
        torch.tensor(values, dtype=torch.float64) for values in zip(*columns, strict=True)
    )
    found = e_values(probe.T, reserve.T, lows, highs).reshape(len(measures), -1).tolist()
    by_width: list[dict[str, float]] = [{} for _ in half_widths]
    for each, (again, *moved) in zip(measures, found, strict=True):
        assert each.e is not None
        # It is 1 where a record had several rows: they are no evidence in any band.
        untested = each.e == 1.0
        if not untested and abs(again - each.e) > _EQUAL * max(again, each.e):
            raise Refused(
                f"the e-value of corpus {each.corpus} at {each.layer} does not follow from its "
                "row scores",
                where=where,
            )
        for place, e in enumerate(moved):
            by_width[place][each.layer] = 1.0 if untested else e
    return by_width


def _check_actions(run: ObservedRun) -> None:
    if acts := sorted({each.action for each in run.subjects.values()} - {"flag"}):
        raise Refused(
            f"the run's policy may {acts[0]} a corpus, so other bands would have read other rows",
            do="Draw the curve from runs whose policy only flags",
        )
