"""Evidence over a whole run: what a policy's ``fdr`` promises is promised of the run.

Each measure has an e-value of "the odds ratio is at most the layer's tolerance" (``Measure.e``).
Where the hypothesis holds its mean is at most 1.

    e(corpus, profile)   the mean over the corpus's layers that have a tolerance
    E(corpus)            the sum of these over the run's profiles, divided by K·(1 + rollbacks)

K is how many profiles a run makes of the corpus, known beforehand. So E only grows, and its mean at
the run's end is at most 1, whatever the dependence between profiles. A corpus is flagged when e-BH
rejects it, over the corpora of its domain, at level ``fdr``. What is rejected stays rejected, so
the false discovery rate over the whole run is at most ``fdr`` in each domain. A corpus without
effect that is alone in its domain is flagged in at most ``fdr`` of all runs.

Invariants

* **One domain never decides for another**: the procedure runs over one domain's corpora.
* A corpus is decided on after a profile of its own with e above 1, which is then its evidence.
* A profile with e of at most 1 is *calm*: a rollback goes back to after the last one.
* A corpus of so few records that a full profile could not flag it is *unmeasurable*. It is
  measured all the same, and has no part in the procedure.

Sources: Wang and Ramdas 2022, "False discovery rate control with e-values"; Ramdas, Grünwald, Vovk
and Shafer 2023, "Game-theoretic statistics and safe anytime-valid inference".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record import rank_evidence
from govray.governance.record.entropy_profile import (
    EntropyProfile,
    Measure,
    MonitorDecision,
    MonitoredCorpus,
)

LEVEL = 0.05
"""Of confidence bounds: in so many cases at most a bound is above the truth."""

MOST_TO_ONE = 4
"""Rows trained on that are measured for each row of a reserve: more would say little more."""


def rejected(e_values: Sequence[float], level: float) -> tuple[bool, ...]:
    """e-BH: which hypotheses fall, in the given order. Rejects the k largest, k the largest number
    with e[k] ≥ m/(k·level), e[1] ≥ … ≥ e[m]. Source: Wang and Ramdas 2022, section 4."""
    count = len(e_values)
    ordered = sorted(e_values, reverse=True)
    reached = [e for k, e in enumerate(ordered, start=1) if e * k * level >= count]
    least = min(reached, default=math.inf)
    return tuple(e >= least for e in e_values)


def profiles_of(section: Monitoring, corpus: str, steps: int) -> int:
    """How many profiles a run of so many steps makes of a corpus, at most."""
    due = steps // section.every
    return len(range(section.turn(corpus) or section.turns, due + 1, section.turns))


def measurable(section: Monitoring, ours: int, theirs: int) -> bool:
    """Whether a corpus could be flagged, if all else of its domain were too.

    Args:
        ours: Records that train, at most.
        theirs: Records of the reserve, at most.
    """
    if min(ours, theirs) < 1:
        return False
    held = min(theirs, section.probe_rows)
    trained = min(ours, section.probe_rows, MOST_TO_ONE * held)
    most = rank_evidence.most(trained, held, min(section.odds.values()))
    return most * section.fdr >= 1 + section.rollbacks


def e_of(profile: EntropyProfile, corpus: str, section: Monitoring) -> float:
    """A corpus's e-value in a profile: the mean over its layers with a tolerance, 0 without one."""
    found = [e for _, e in _by_layer(profile, corpus, section)]
    return math.fsum(found) / len(found) if found else 0.0


def least_odds(measures: Iterable[Measure], level: float = LEVEL) -> float:
    """A lower confidence bound of a corpus's odds ratio, from its layers in one profile; 1 where
    no effect shows."""
    found = [each for each in measures if each.tested]
    if not found:
        return 1.0
    rows = found[0].probe.records, found[0].reserve.records
    return rank_evidence.least_odds(*rows, [each.top for each in found], level)


def effect(
    history: Sequence[EntropyProfile],
    section: Monitoring,
    subjects: Mapping[str, MonitoredCorpus],
    step: int,
) -> float:
    """M, what a trial is judged by: the log of the largest odds ratio that is sure; never below 0.

    A bound is of a corpus's newest profile up to the step. All of them together hold at `LEVEL`.
    Where no corpus has an effect, M is above 0 at a step in at most that share of runs.

    Args:
        history: Profiles, oldest first.
    """
    newest: dict[str, EntropyProfile] = {}
    for profile in history:
        if profile.step <= step:
            newest |= dict.fromkeys(profile.corpora, profile)
    tested = [corpus for corpus, subject in subjects.items() if subject.profiles]
    bounds = [
        least_odds(
            (each for each, _ in _tolerated(newest[corpus], corpus, section)), LEVEL / len(tested)
        )
        for corpus in tested
        if corpus in newest
    ]
    return math.log(max(bounds, default=1.0))


def evidence(
    profiles: Iterable[EntropyProfile],
    section: Monitoring,
    subjects: Mapping[str, MonitoredCorpus],
) -> dict[str, float]:
    """Corpus → E, of every measurable corpus; 0 where none of these profiles is of it."""
    sums: dict[str, list[float]] = {
        corpus: [] for corpus, subject in subjects.items() if subject.profiles
    }
    for profile in profiles:
        for corpus in profile.corpora & sums.keys():
            sums[corpus].append(e_of(profile, corpus, section))
    return {
        corpus: math.fsum(found) / _budget(section, subjects[corpus])
        for corpus, found in sums.items()
    }


def decide(
    profile: EntropyProfile,
    history: Sequence[EntropyProfile],
    section: Monitoring,
    subjects: Mapping[str, MonitoredCorpus],
    *,
    gated: Set[str] = frozenset(),
    flagged: Collection[str] = (),
    rollbacks: Mapping[str, int] | None = None,
) -> tuple[MonitorDecision, ...]:
    """What follows from ``profile``, sorted by corpus.

    Args:
        history: Those before it that the weights rest on, oldest first.
        gated: Corpora that were gated before; nothing more follows for them.
        flagged: Corpora that were flagged before, by ``history``.
        rollbacks: Domain → rollbacks that it has had.
    """
    profiles = [*history, profile]
    totals = evidence(profiles, section, subjects)
    decisions = []
    for corpus in sorted((profile.corpora & totals.keys()) - gated - set(flagged)):
        subject = subjects[corpus]
        peers = [c for c in totals if subjects[c].domain == subject.domain]
        falls = dict(zip(peers, rejected([totals[c] for c in peers], section.fdr), strict=True))
        if not falls[corpus] or e_of(profile, corpus, section) <= 1:
            continue
        own = [each for each in profiles if corpus in each.corpora]
        calm = [each.step + 1 for each in own if e_of(each, corpus, section) <= 1]
        since = max(calm, default=0)
        decisions.append(
            MonitorDecision(
                branch=profile.branch,
                step=profile.step,
                corpus=corpus,
                action=subject.action_after((rollbacks or {}).get(subject.domain, 0), section),
                fallback=subject.fallback,
                layers=_layers(own, corpus, section, subject),
                evidence=tuple(each.digest for each in own if each.step >= since),
                since=since,
                e=min(totals[corpus], rank_evidence.MOST),
            )
        )
    return tuple(decisions)


def _layers(
    own: Iterable[EntropyProfile], corpus: str, section: Monitoring, subject: MonitoredCorpus
) -> tuple[str, ...]:
    """The layers whose evidence alone reaches 1/fdr, sorted: the mean does, so one does."""
    sums: dict[str, list[float]] = {}
    for each in own:
        for layer, e in _by_layer(each, corpus, section):
            sums.setdefault(layer, []).append(e)
    totals = {layer: math.fsum(found) for layer, found in sums.items()}
    enough = min(_budget(section, subject) / section.fdr, max(totals.values()))
    return tuple(sorted(layer for layer, total in totals.items() if total >= enough))


def _by_layer(profile: EntropyProfile, corpus: str, section: Monitoring) -> list[tuple[str, float]]:
    return [(each.layer, each.e(odds)) for each, odds in _tolerated(profile, corpus, section)]


def _tolerated(
    profile: EntropyProfile, corpus: str, section: Monitoring
) -> list[tuple[Measure, float]]:
    """The measures of layers that decide, each with its tolerance."""
    found = ((each, section.tolerance(each.layer)) for each in profile.of(corpus))
    return [(each, odds) for each, odds in found if odds is not None]


def _budget(section: Monitoring, subject: MonitoredCorpus) -> int:
    """What a corpus's e-values are divided by: the profiles of all branches that it could have."""
    return subject.profiles * (1 + section.rollbacks)
