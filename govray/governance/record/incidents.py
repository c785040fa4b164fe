"""What a run's entropy profiles led to: flags, gates, rollbacks and the branches of its ledger.

`Incidents` follows a ledger from its first leaf and decides as it goes, by the evidence of the
whole run (``e_process``). A worker applies it to its own run, a resumed one to the record, and a
verifier to the given ledger. All come to the same decisions, because nothing else enters them.

Branches

A rollback after step k of branch b is followed by branch b+1, and by no further step of branch b.
``MonitorDecision.since`` is the step after the corpus's last calm probe. The new
branch begins there, or at an earlier step with a commit. Steps in between are repeated as they
were, and the corpus is left out from ``since`` on. So the action depends only on the corpus's
evidence, whatever commits are kept. What is decided on the new branch rests on the profiles of the
steps before it and its own.

Invariants

* Nothing lifts a gate. On a new branch a corpus stays gated, from the same step on or from the
  branch's first.
* Every branch but 0 follows from a rollback, and every rollback has its branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from govray.errors import Refused
from govray.governance.formats.bounds import Natural
from govray.governance.formats.document import Document, Name
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record import e_process
from govray.governance.record.entropy_profile import (
    EntropyProfile,
    Measure,
    MonitorDecision,
    MonitoredCorpus,
)
from govray.governance.record.gates import Gate
from govray.governance.record.ledger import AnyLeaf, Leaf
from govray.governance.record.prepare_manifest import Manifest

LEAST_ROWS = 2
"""Of each side: a corpus with fewer is not measured."""


class Findings(Document):
    """What an attestation says of memorization; all of it follows from the ledger.

    Attributes:
        branches: The first step of every branch.
        decisions: In the order in which they were taken.
        measured: Corpus → the step of its newest profile that the final state rests on.
        measures: Of those profiles, sorted by corpus and layer.
        unmeasurable: Corpora that have no part in the procedure, sorted. They have too few
            records, or no profile was due.
    """

    branches: tuple[Natural, ...]
    decisions: tuple[MonitorDecision, ...]
    measured: dict[Name, Natural]
    measures: tuple[Measure, ...]
    unmeasurable: tuple[Name, ...]


@dataclass(frozen=True)
class _Left:
    """From which step on a branch leaves a corpus out, or sends it to its fallback; and the
    decision's last evidence."""

    step: int
    evidence: str


class Incidents:
    """The story of one run, so far.

    Attributes:
        starts: The first step of every branch.
        decisions: In the order in which they were taken.
    """

    def __init__(self, section: Monitoring, subjects: Mapping[str, MonitoredCorpus]) -> None:
        self.section = section
        self.subjects = subjects
        self.starts = [0]
        self.decisions: list[MonitorDecision] = []
        self._history: list[EntropyProfile] = []
        self._left: list[dict[str, _Left]] = [{}]
        self._ends: list[int] = []
        self._last = -1
        self._pending: int | None = None

    @property
    def branch(self) -> int:
        """The newest that was begun."""
        return len(self.starts) - 1

    @property
    def pending(self) -> int | None:
        """After a rollback: at which step at the latest the next branch begins; else None."""
        return self._pending

    @property
    def history(self) -> Sequence[EntropyProfile]:
        """The profiles that the newest branch rests on, oldest first."""
        return self._history

    def reach(self, branch: int, step: int) -> None:
        """The run did a step. Raises ``Refused``: it goes on where a rollback was due, or begins a
        branch without one, or too late."""
        where = f"branch {branch} step {step}"
        if branch <= self.branch:
            if branch == self.branch and self._pending is not None:
                raise Refused("the run went on in a branch that was rolled back", where=where)
            self._last = step
            return
        if self._pending is None or branch != self.branch + 1:
            raise Refused("a branch that follows from no rollback", where=where)
        if step > self._pending:
            raise Refused(
                f"the branch begins after step {self._pending}, up to which the rollback goes back",
                where=where,
            )
        self._ends.append(self.decisions[-1].step)
        self._left.append(
            {
                corpus: _Left(max(step, left.step), left.evidence)
                for corpus, left in self._left[-1].items()
            }
        )
        self.starts.append(step)
        self._last = step
        self._history = [profile for profile in self._history if profile.step < step]
        self._pending = None

    def take(self, profile: EntropyProfile) -> tuple[MonitorDecision, ...]:
        """Decide on a profile of the newest branch."""
        left = self._left[-1]
        made = self._decided(profile)
        self._history.append(profile)
        self.decisions += made
        for decision in made:
            if decision.action == "flag":
                continue
            back = decision.action == "rollback"
            step = decision.since if back else decision.step + 1
            left[decision.corpus] = _Left(step, decision.evidence[-1])
            if back:
                self._pending = min(step, step if self._pending is None else self._pending)
        return made

    def _decided(self, profile: EntropyProfile) -> tuple[MonitorDecision, ...]:
        held = {each.digest for each in self._history}
        return e_process.decide(
            profile,
            self._history,
            self.section,
            self.subjects,
            gated=self._left[-1].keys(),
            flagged={each.corpus for each in self.decisions if each.evidence[-1] in held},
            rollbacks=self._rollbacks(),
        )

    def gates(self, stop: int) -> tuple[Gate, ...]:
        """Those that left something out, of every branch; of the newest, before step ``stop``."""
        found = []
        for branch, left in enumerate(self._left):
            # A corpus that was rolled back was trained on to the end of the branch.
            end = self._ends[branch] + 1 if branch < len(self._ends) else stop
            back = {
                decision.corpus
                for decision in self.decisions
                if decision.branch == branch and decision.action == "rollback"
            }
            found += [
                Gate(
                    branch=branch,
                    step=each.step,
                    corpus=corpus,
                    reason="memorization",
                    fallback=self.subjects[corpus].fallback,
                    evidence=each.evidence,
                )
                for corpus, each in left.items()
                if each.step < end and corpus not in back
            ]
        return tuple(sorted(found, key=lambda gate: gate.place))

    @property
    def floor(self) -> int | None:
        """The earliest step that a rollback could go back to by now; None if none can follow.
        A state at or before it is worth keeping. If it is gone the run goes back further."""
        spent = self._rollbacks()
        calm = {
            corpus: 0
            for corpus, subject in self.subjects.items()
            if subject.action == "rollback"
            and corpus not in self._left[-1]
            and spent.get(subject.domain, 0) < self.section.rollbacks
        }
        for profile in self._history:
            for corpus in self._calm(profile) & calm.keys():
                calm[corpus] = profile.step + 1
        return min(calm.values(), default=None)

    def _calm(self, profile: EntropyProfile) -> Set[str]:
        """The corpora of a profile that a rollback would go back to."""
        return {c for c in profile.corpora if e_process.e_of(profile, c, self.section) <= 1}

    def findings(self) -> Findings:
        """What there is to say when the run has ended."""
        newest = {corpus: each for each in self._history for corpus in each.corpora}
        measures = [
            measure
            for corpus, each in newest.items()
            for measure in each.measures
            if measure.corpus == corpus
        ]
        return Findings(
            branches=tuple(self.starts),
            decisions=tuple(
                each if self._followed(each) else each.at_the_end() for each in self.decisions
            ),
            measured={corpus: each.step for corpus, each in newest.items()},
            measures=tuple(sorted(measures, key=lambda measure: measure.place)),
            unmeasurable=tuple(sorted(self.unmeasurable)),
        )

    def _followed(self, decision: MonitorDecision) -> bool:
        """Whether a step came after a decision, on its branch or on a later one."""
        return max((*self._ends[decision.branch :], self._last)) > decision.step

    @property
    def unmeasurable(self) -> frozenset[str]:
        """Corpora that have no part in the procedure."""
        return frozenset(c for c, subject in self.subjects.items() if not subject.profiles)

    def _rollbacks(self) -> dict[str, int]:
        """Domain → how many it has had."""
        counts: dict[str, int] = {}
        for decision in self.decisions:
            if decision.action == "rollback":
                domain = self.subjects[decision.corpus].domain
                counts[domain] = counts.get(domain, 0) + 1
        return counts


def follow(
    section: Monitoring,
    subjects: Mapping[str, MonitoredCorpus],
    leaves: Iterable[AnyLeaf],
    manifest: Manifest,
) -> Incidents:
    """The story that a whole ledger tells, if it tells one.

    Raises:
        Refused: A profile is missing, or is not the one that the section asks for. Or a rollback
            was not followed, or a branch follows from none. Names branch and step.
    """
    incidents = Incidents(section, subjects)
    trained = Trained()
    missing: frozenset[str] = frozenset()
    where = "the ledger"
    for leaf in leaves:
        if isinstance(leaf, EntropyProfile):
            _check_profile(leaf, section, missing, where)
            incidents.take(leaf)
            missing = frozenset()
        elif isinstance(leaf, Leaf):
            if missing:
                raise Refused(f"no entropy profile of {', '.join(sorted(missing))}", where=where)
            where = f"ledger branch {leaf.branch} step {leaf.step}"
            if leaf.branch < incidents.branch:
                raise Refused("a step of a branch that was left behind", where=where)
            incidents.reach(leaf.branch, leaf.step)
            trained.add(leaf)
            missing = measured(section, subjects, trained.rows, manifest, leaf.step)
    if missing:
        raise Refused(f"no entropy profile of {', '.join(sorted(missing))}", where=where)
    if incidents.pending is not None:
        raise Refused("a rollback was due, and nothing followed", where=where)
    return incidents


class Trained:
    """How many rows of each corpus the newest branch's steps have read, with those before it."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._leaves: list[Leaf] = []

    def add(self, leaf: Leaf) -> None:
        """Take the next step's leaf; leaves behind a rollback no longer count."""
        if self._leaves and leaf.step <= self._leaves[-1].step:
            self._leaves = [each for each in self._leaves if each.step < leaf.step]
            self.rows.clear()
            for each in self._leaves:
                self._count(each)
        self._leaves.append(leaf)
        self._count(leaf)

    def _count(self, leaf: Leaf) -> None:
        self.rows.update({corpus: use.rows for corpus, use in leaf.corpora.items()})


def measured(
    section: Monitoring,
    subjects: Mapping[str, MonitoredCorpus],
    trained: Mapping[str, int],
    manifest: Manifest,
    step: int,
) -> frozenset[str]:
    """The corpora that the profile after a step is of; none if there is no profile.

    Packed text alone is measured.

    Args:
        trained: Corpus → rows read up to and with the step.
    """
    if not section.due(step) or manifest.rows is not None:
        return frozenset()
    return frozenset(
        corpus
        for corpus in subjects
        if section.in_turn(corpus, step)
        and trained.get(corpus, 0) >= LEAST_ROWS
        and min(manifest.train_rows(corpus), manifest.reserve_rows(corpus)) >= LEAST_ROWS
    )


def _check_profile(
    profile: EntropyProfile, section: Monitoring, expected: frozenset[str], where: str
) -> None:
    if profile.corpora != expected:
        differing = ", ".join(sorted(profile.corpora ^ expected))
        raise Refused(
            f"the entropy profile is of other corpora than were due: {differing}", where=where
        )
    if profile.statistic != section.statistic:
        raise Refused(
            f"the entropy profile is of {profile.statistic}, the policy asks for "
            f"{section.statistic}",
            where=where,
        )
    for measure in profile.measures:
        if max(measure.probe.records, measure.reserve.records) > section.probe_rows:
            raise Refused(
                f"corpus {measure.corpus} was measured by more than {section.probe_rows} rows",
                where=where,
            )


def subjects_of(
    policy: Policy,
    rules: Mapping[str, Sequence[str]],
    routes: CorpusRoutes,
    base_groups: Sequence[str],
    manifest: Manifest,
    steps: int,
) -> dict[str, MonitoredCorpus]:
    """Corpus → what follows if it memorizes, and the domain that decides it.

    A corpus whose rules the section does not name is not among them: it is never measured.

    Args:
        policy: With a ``memorization`` section.
        base_groups: The model's layer groups, adapters excepted.
    """
    if policy.memorization is None:
        return {}
    found = {}
    frozen = routes.domains(base_groups)
    for corpus, route in routes.items():
        if not policy.memorization.watches(rules[corpus]):
            continue
        domain = next(d for d in frozen if not d.isdisjoint(route.groups))
        fallback = routes.fallbacks.get(corpus)
        found[corpus] = MonitoredCorpus(
            min(domain),
            policy.memorization.action(rules[corpus]),
            fallback.profile if fallback else None,
            e_process.profiles_of(policy.memorization, corpus, steps)
            if flaggable(policy.memorization, corpus, manifest)
            else 0,
        )
    return found


def flaggable(section: Monitoring, corpus: str, manifest: Manifest) -> bool:
    """Whether a corpus has records enough that a full profile of it could flag it."""
    train, reserve = manifest.split_counts(corpus)
    # A record has one row in a profile.
    ours = min(train, manifest.own_rows(corpus))
    theirs = min(reserve, manifest.reserve_rows(corpus))
    return e_process.measurable(section, ours, theirs)
