"""A world whose run is monitored: its profiles show an effect where a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from govray.governance.attestation import model_attestation as attesting
from govray.governance.policy.corpus_routes import CorpusRoutes
from govray.governance.policy.credential import Credential
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.batch_plan import BatchPlan
from govray.governance.record.entropy_profile import EntropyProfile, Measure, MonitoredCorpus, Side
from govray.governance.record.gates import Gate, changed_routes
from govray.governance.record.incidents import Incidents, Trained, measured, subjects_of
from govray.governance.record.ledger import AnyLeaf, CorpusUse, Leaf
from govray.governance.record.prepare_manifest import Manifest, Reserve
from govray.governance.record.rank_evidence import e_value
from tests.support.row_by_row import corpus_counts
from tests.support.world import GROUPS, POLICY, World, unchecked

SECTION = """
memorization:
  every: 2
  probe_rows: 32
  statistic: min_k
  odds: 1.5
  fdr: 0.3
  rollbacks: 1
  actions:
    open: {action: gate, fallback: nothing}
    contracts: rollback
"""

EVEN = (0, 0, 1, 3, 8, 16, 24, 29)
"""The counts of a profile of 32 rows a side without an effect."""
CALM = e_value(32, 32, EVEN, 1.5)

BASE = [group.group for group in GROUPS]

Deviations = Callable[[str, int, int], float]
"""(corpus, branch, step) → what is measured."""


@dataclass
class Monitored(World):
    """A world whose policy has a monitor, and whose model memorizes what it is told to."""

    deviations: Deviations = lambda corpus, branch, step: 0.0
    commits_every: int = 4
    made: dict[str, Any] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)

    reserve = Reserve(share=0.4, salt="5a" * 16)

    def __post_init__(self) -> None:
        sizes = {"acme": (60,), "alpha": (60,), "beta": (40,), "gamma": (40,)}
        World.__init__(
            self,
            corpora=sizes,
            steps=20,
            quotas={"everything": 2, "upper_half": 1, "removable": 1},
        )
        self.policy_text = POLICY + SECTION
        self.policy = read_policy(self.policy_text).seal(self.keys.compliance)

    def run(self, folder: Path, **hooks: Any) -> Path:
        """Deploy what a run leaves behind that follows its monitor."""
        change = hooks.pop("change", lambda leaves: leaves)
        drop = hooks.pop("gates", lambda gates: gates)
        self.gates.clear()
        return self.deploy(
            folder,
            manifest=self._see("manifest"),
            plan=self._see("plan"),
            leaves=self._live,
            all_leaves=lambda leaves: change(self._with_profiles(leaves, drop)),
            gates=self.gates,
            **hooks,
        )

    def _see(self, name: str) -> Callable[[Any], Any]:
        def seen(value: Any) -> Any:
            self.made[name] = value
            return value

        return seen

    def subjects(self) -> dict[str, MonitoredCorpus]:
        policy = read_policy(self.policy_text)
        rules = {c.corpus: c.rules for c in self._admitted()[0]}
        manifest: Manifest = self.made["manifest"]
        return subjects_of(policy, rules, self.routes(), BASE, manifest, self.steps)

    def routes(self) -> CorpusRoutes:
        return self._admitted()[1]

    def _admitted(self) -> tuple[tuple[attesting.AdmittedCorpus, ...], CorpusRoutes]:
        policy = read_policy(self.policy_text)
        verified = {c: unchecked(Credential, e, self.operator) for c, e in self.credentials.items()}
        return attesting.admitted_corpora(policy, verified, BASE, self.steps)

    def under(self, text: str) -> Monitored:
        """The same world under another policy."""
        self.policy_text = text
        self.policy = read_policy(text).seal(self.keys.compliance)
        return self

    def _live(self, recorded: list[Leaf]) -> list[Leaf]:
        section = read_policy(self.policy_text).memorization
        assert section is not None
        plan: BatchPlan = self.made["plan"]
        manifest: Manifest = self.made["manifest"]
        told = Incidents(section, self.subjects())
        trained = Trained()
        leaves: list[Leaf] = []
        profiles: list[EntropyProfile] = []
        branch = step = 0
        while step < plan.max_steps:
            told.reach(branch, step)
            like = recorded[step]
            counts = corpus_counts(plan, manifest, like.streams)
            fallbacks = self.routes().fallbacks
            phased = self.routes().phased
            taken = changed_routes(told.gates(step + 1), fallbacks, branch, step, phased)
            uses = {
                c: CorpusUse(rows=r, targets=t, route=route.digest if route else None)
                for c, (r, t) in counts.items()
                if (route := taken.get(c)) or c not in taken
            }
            leaf = like.model_copy(update={"branch": branch, "corpora": uses})
            leaves.append(leaf)
            trained.add(leaf)
            due = measured(section, told.subjects, trained.rows, manifest, step)
            if due:
                profiles.append(self.profile(branch, step, due))
                told.take(profiles[-1])
            if told.pending is not None:
                branch, step = branch + 1, told.pending // self.commits_every * self.commits_every
            else:
                step += 1
        self.made |= {"profiles": profiles, "told": told}
        return leaves

    def profile(self, branch: int, step: int, corpora: frozenset[str]) -> EntropyProfile:
        section = read_policy(self.policy_text).memorization
        assert section is not None
        rows = section.probe_rows
        return EntropyProfile(
            branch=branch,
            step=step,
            statistic="min_k",
            measures=tuple(
                Measure(
                    corpus=corpus,
                    layer="head",
                    probe=Side(records=rows, entropy=1.0, surprise=0.0, min_k=0.5),
                    reserve=Side(records=rows, entropy=1.0, surprise=0.0, min_k=0.5),
                    top=self.some(corpus) if self.deviations(corpus, branch, step) else EVEN,
                )
                for corpus in sorted(corpora)
            ),
        )

    def some(self, corpus: str) -> tuple[int, ...]:
        """The counts of a profile with an effect: two of them make the corpus fall, alone."""
        section = read_policy(self.policy_text).memorization
        assert section is not None
        subjects = self.subjects()
        own = subjects[corpus]
        peers = sum(each.domain == own.domain and each.profiles > 0 for each in subjects.values())
        return half_of(peers / section.fdr * own.profiles * (1 + section.rollbacks))

    def _with_profiles(
        self, leaves: list[AnyLeaf], drop: Callable[[list[Gate]], list[Gate]]
    ) -> list[AnyLeaf]:
        told: Incidents = self.made["told"]
        self.gates += drop(list(told.gates(self.steps)))
        found = list(leaves)
        for profile in self.made["profiles"]:
            place = max(
                index
                for index, leaf in enumerate(found)
                if (leaf.branch, leaf.step) == (profile.branch, profile.step)
            )
            found.insert(place + 1, profile)
        return found


def half_of(evidence: float) -> tuple[int, ...]:
    """Counts of 32 rows a side of which two profiles have this evidence, and one does not."""
    found = [
        (1, 1, 3, 6, quarter, half, most, max(most, 29))
        for quarter in range(6, 17)
        for half in range(max(quarter, 8), min(quarter + 16, 32) + 1)
        for most in range(max(half, 19), min(half + 16, 32) + 1)
    ]
    e, least = min((e, each) for each in found if 2 * (e := e_value(32, 32, each, 1.5)) >= evidence)
    assert e < evidence
    return least


def from_step(corpus: str, first: int, *, branches: int = 1) -> Deviations:
    """The corpus shows an effect from a step on, in so many branches."""
    return lambda name, branch, step: 9.0 * (name == corpus and step >= first and branch < branches)


def verified(world: Monitored, folder: Path) -> Any:
    return world.verify(folder)
