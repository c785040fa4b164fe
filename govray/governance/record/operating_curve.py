"""What a monitor would have decided at other tolerances: the curve that a policy's is a point of.

A profile has counts, from which the e-value at any odds follows. From the e-values follow the
decisions, as in a run (``incidents.py``).

The run must only have flagged. What a gate or rollback leaves out is not read on, and at other odds
other rows would have been.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from govray.errors import Refused
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
from govray.governance.record.incidents import Incidents

ODDS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""What a curve is drawn at by default."""


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A run whose policy has a monitor.

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
    """One tolerance.

    Attributes:
        false_flags: Clean corpora flagged, over all runs.
        clean: Clean corpora that could have been flagged, over all runs.
        runs: How many.
        until: Any other corpus → of each run that measured it, its profiles up to the one that
            flagged it; None where none did.
    """

    odds: float
    false_flags: int
    clean: int
    runs: int
    until: Mapping[str, tuple[int | None, ...]]


def curve(runs: Sequence[ObservedRun], odds: Sequence[float]) -> tuple[Point, ...]:
    """A point for each of these odds, in the given order. Raises ``Refused``: the policy of a run
    does more than flag."""
    for run in runs:
        if acts := sorted({each.action for each in run.subjects.values()} - {"flag"}):
            raise Refused(
                f"the run's policy may {acts[0]} a corpus, so at other odds it would have read "
                "other rows",
                do="Draw the curve from runs whose policy only flags",
            )
    return tuple(_point(runs, [flagged_at(run, each) for run in runs], each) for each in odds)


def flagged_at(run: ObservedRun, odds: float) -> dict[str, int]:
    """Corpus → its profiles up to the one that flags it, with these odds at all layers that have
    a tolerance."""
    section = run.section.model_copy(update={"odds": dict.fromkeys(run.section.odds, odds)})
    told = Incidents(section, run.subjects)
    seen: dict[str, int] = {}
    flagged: dict[str, int] = {}
    for profile in run.profiles:
        for corpus in profile.corpora:
            seen[corpus] = seen.get(corpus, 0) + 1
        for decision in told.take(profile):
            flagged[decision.corpus] = seen[decision.corpus]
    return flagged


def _point(runs: Sequence[ObservedRun], flagged: Sequence[Mapping[str, int]], odds: float) -> Point:
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
        odds=odds,
        false_flags=false_flags,
        clean=clean,
        runs=len(runs),
        until={corpus: tuple(each) for corpus, each in until.items()},
    )
