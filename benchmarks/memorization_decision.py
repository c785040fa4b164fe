"""What the product decides in a run of the memorization benchmark, at the shipped operating point.

The section is that of the policy that is shipped (``policies/licences.yaml``). Its cadence, rows,
odds and level are taken as they stand; only its actions are not. So a flag is an event, and the
run goes on. All corpora are of one domain.

A corpus is measured in each profile that is due, from the first on. A record is measured by one
of its rows, drawn without regard to its length, as a run's profiles do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.memorization_data import Data, Recipe, batch, designated
from benchmarks.memorization_training import DOCSTRINGS, Reading
from govray.engine.memorization.monitor import Monitor
from govray.engine.memorization.probe_sharing import Probe, pick
from govray.errors import UsageError
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record import e_process
from govray.governance.record.entropy_profile import EntropyProfile, MonitoredCorpus
from govray.governance.record.incidents import LEAST_ROWS, Incidents

POLICY = Path(__file__).parents[1] / "policies" / "licences.yaml"


@dataclass(frozen=True)
class Decided:
    """What was flagged in a run.

    Attributes:
        caught: Whether the corpus that is read again and again was flagged.
        profiles_until: Its profiles up to the one that flagged it; None if none did.
        false_flags: Clean corpora that were flagged, sorted.
        profiles: How many the run made.
    """

    caught: bool
    profiles_until: int | None
    false_flags: tuple[str, ...]
    profiles: int


def shipped() -> Monitoring:
    """The section of the shipped policy.

    Raises:
        UsageError: The policy has none.
    """
    section = read_policy(POLICY.read_bytes(), name=POLICY.name).memorization
    if section is None:
        raise UsageError("the shipped policy has no memorization section", where=str(POLICY))
    return section


class Watch:
    """Measures all corpora of a run, and decides.

    Args:
        recipe: Sizes.
        data: The seed's.
        reading: What the run reads.
        section: Whose cadence, rows, odds and level hold.
    """

    def __init__(self, recipe: Recipe, data: Data, reading: Reading, section: Monitoring) -> None:
        self._recipe = recipe
        self._reading = reading
        self._section = section
        self._trained = {
            DOCSTRINGS: [record[: recipe.rows_each] for record in data.docstrings.trained]
        } | {name: corpus.trained for name, corpus in data.clean.items()}
        self._reserve = {
            DOCSTRINGS: [record[: recipe.rows_each] for record in data.docstrings.reserve]
        } | {name: corpus.reserve for name, corpus in data.clean.items()}
        self._profiles: list[EntropyProfile] = []

    def after(self, step: int, monitor: Monitor) -> None:
        """Make the profile that is due after a step, if one is."""
        due = [name for name in sorted(self._trained) if self._section.in_turn(name, step)]
        probes = [self.probe(name, step, self._section.probe_rows) for name in due]
        probes = [each for each in probes if len(each.probe_units) >= LEAST_ROWS]
        if probes:
            self._profiles.append(monitor.profile(step, probes, section=self._section))

    def probe(self, corpus: str, step: int, count: int) -> Probe:
        """The newest designated rows that were read, beside designated rows of the reserve."""
        newest = dict.fromkeys(
            (number, tuple(row))
            for number, row in reversed(self._reading.read[corpus])
            if row == designated(corpus, number, self._trained[corpus][number])
        )
        ours = [*newest][:count]
        held = self._reserve[corpus]
        theirs = [
            (number, designated(f"reserve of {corpus}", number, held[number]))
            for number in pick(len(held), count, corpus, step, "reserve")
        ]
        return Probe(
            corpus=corpus,
            adapter=None,
            probe_units=tuple(f"read {number}" for number, _ in ours),
            reserve_units=tuple(f"reserve {number}" for number, _ in theirs),
            tensors=batch([[*row] for _, row in (*ours, *theirs)]),
        )

    def decided(self) -> Decided:
        """What follows from all the profiles."""
        incidents = Incidents(self._section, {name: self._subject(name) for name in self._trained})
        flagged: dict[str, int] = {}
        for profile in self._profiles:
            for each in incidents.take(profile):
                flagged.setdefault(each.corpus, each.step)
        until = None
        if DOCSTRINGS in flagged:
            own = [each for each in self._profiles if DOCSTRINGS in each.corpora]
            until = sum(each.step <= flagged[DOCSTRINGS] for each in own)
        return Decided(
            caught=DOCSTRINGS in flagged,
            profiles_until=until,
            false_flags=tuple(sorted(flagged.keys() - {DOCSTRINGS})),
            profiles=len(self._profiles),
        )

    def _subject(self, corpus: str) -> MonitoredCorpus:
        """The corpus in the run's one domain; a flag is all that follows."""
        sides = len(self._trained[corpus]), len(self._reserve[corpus])
        possible = e_process.measurable(self._section, *sides)
        profiles = e_process.profiles_of(self._section, corpus, self._recipe.steps)
        return MonitoredCorpus("trunk", "flag", profiles=profiles if possible else 0)


def summary(decided: Sequence[Decided], section: Monitoring) -> dict[str, Any]:
    """Over several runs: caught and false flags, beside the operating point."""
    until = [each.profiles_until for each in decided if each.profiles_until is not None]
    return {
        "caught": sum(each.caught for each in decided) / len(decided),
        "false_flags_per_run": sum(len(each.false_flags) for each in decided) / len(decided),
        "profiles_until": median(until) if until else None,
        "runs": len(decided),
        "profiles": max(each.profiles for each in decided),
        "section": section.to_json(),
    }
