"""The monitor in a run: which corpora are measured after which step, and what all ranks do then.

The driver says what is monitored (`monitored`); each worker's `Watch` reads probe rows, lets a
scorer measure them, and decides by the run's story (``governance/incidents.py``). A profile that
was recorded is not measured again: decisions rest on the first one, whatever a later device says.

Invariants:

* Every rank holds the same profile, so the same decisions, and does the same from the next step on.
* Scoring is collective and leaves no trace in the training (``engine/monitor.py``).

What it does not do: write the ledger, leave rows out (`gating`), or find checkpoints (`rollback`).
A worker reads probe rows in the prepared folder itself; it must lie where workers can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from govray.data.probes import Chosen, Probes
from govray.engine.batch import IGNORED
from govray.engine.probe import Probe, own_rows
from govray.errors import GovrayError, Refused
from govray.governance.incidents import LEAST_ROWS, Incidents, Trained, measured, subjects_of
from govray.governance.ledger import AnyLeaf, Leaf
from govray.governance.manifest import Manifest
from govray.governance.memorization import Decision, EntropyProfile, Subject
from govray.governance.monitoring import Monitoring, Statistic
from govray.governance.policy import Policy
from govray.governance.route import Route

if TYPE_CHECKING:
    from govray.train.order import Order


@dataclass(frozen=True)
class Monitored:
    """What a run's policy asks of its monitor. Travels in the order.

    Attributes:
        section: The policy's.
        subjects: Corpus → what follows, and in which domain.
    """

    section: Monitoring
    subjects: Mapping[str, Subject]

    def follow(self, leaves: Iterable[AnyLeaf]) -> Incidents:
        """The story of a run so far, from all the leaves that it has recorded.

        Raises:
            Refused: They are not those of a run under this policy.
        """
        told = Incidents(self.section, self.subjects)
        for leaf in leaves:
            if isinstance(leaf, EntropyProfile):
                told.take(leaf)
            elif isinstance(leaf, Leaf):
                told.reach(leaf.branch, leaf.step)
        return told

    def story(self, profiles: Iterable[EntropyProfile], starts: Sequence[int]) -> Incidents:
        """The same, from the profiles and the first step of every branch."""
        told = Incidents(self.section, self.subjects)
        for profile in profiles:
            while told.branch < profile.branch:
                told.reach(told.branch + 1, starts[told.branch + 1])
            told.take(profile)
        while told.branch < len(starts) - 1:
            told.reach(told.branch + 1, starts[told.branch + 1])
        return told


def monitored(
    policy: Policy,
    rules: Mapping[str, Sequence[str]],
    routes: Mapping[str, Route],
    base_groups: Sequence[str],
    manifest: Manifest,
    excluded: Iterable[str] = (),
) -> Monitored | None:
    """What the policy asks for; None if it has no monitor.

    Args:
        policy: The run's.
        rules: Corpus → the rules that match it.
        routes: Corpus → route, of every corpus that was admitted.
        base_groups: The model's layer groups, adapters excepted.
        manifest: The prepared data.
        excluded: Corpora that the plan does not read.

    Raises:
        Refused: A rule gates or rolls back a corpus that has too little reserve to be measured.
    """
    if policy.memorization is None:
        return None
    subjects = subjects_of(policy, rules, routes, base_groups)
    for corpus in sorted(subjects.keys() - set(excluded)):
        if subjects[corpus].action != "flag" and manifest.reserve_rows(corpus) < LEAST_ROWS:
            raise Refused(
                f"corpus {corpus!r} is to be watched ({subjects[corpus].action}), but has "
                f"{manifest.reserve_rows(corpus)} reserve rows to measure it against",
                where=f"policy {policy}",
                do="Raise data.reserve, or let the rule only flag. Data that an earlier govray "
                "prepared has no reserve rows: remove that folder",
            )
    return Monitored(policy.memorization, subjects)


class Scorer(Protocol):
    """Measures probes; ``engine.monitor.Monitor`` is the one that runs use by default."""

    def profile(
        self, step: int, probes: Sequence[Probe], *, statistic: Statistic, branch: int
    ) -> EntropyProfile:
        """Measure these corpora with the model as it is. Collective, the same on all ranks."""


@dataclass(frozen=True)
class Seen:
    """What a watched step came to.

    Attributes:
        profile: What was measured after it, or recorded before.
        decisions: What follows.
    """

    profile: EntropyProfile
    decisions: tuple[Decision, ...]

    @property
    def memorization(self) -> float:
        """The largest deviation, in robust units."""
        return max(measure.deviation for measure in self.profile.measures)


class Watch:
    """The monitor of one worker's run.

    Args:
        order: The run's, which has a monitor.
        told: The story of all that was recorded, on the branch that the run is on.
        recorded: The profiles that were, which are in the story.
        leaves: Of the steps before, as the commit holds them.
        device: The model's.
    """

    def __init__(
        self,
        order: Order,
        told: Incidents,
        recorded: Iterable[EntropyProfile],
        leaves: Iterable[AnyLeaf],
        *,
        device: torch.device,
    ) -> None:
        assert order.monitored is not None
        self.told = told
        self._order = order
        self._monitored = order.monitored
        self._recorded = {(each.branch, each.step): each for each in recorded}
        self._probes = Probes(Path(order.prepared), order.manifest, order.plan)
        distributed = dist.is_initialized()
        self._rank = dist.get_rank() if distributed else 0
        self._world = dist.get_world_size() if distributed else 1
        self._device = device
        self._trained = Trained()
        for leaf in leaves:
            if isinstance(leaf, Leaf):
                self._trained.add(leaf)
        routes = {c.corpus: order.routes.get(s.id) for s in order.plan.streams for c in s.corpora}
        self._adapters = {c: route.adapter if route else None for c, route in routes.items()}

    def after(
        self, leaf: Leaf, left_out: Callable[[str], int | None], scorer: Callable[[], Scorer]
    ) -> Seen | None:
        """Measure what is due after a step, and decide. Collective.

        Args:
            leaf: Of the step; equal on all ranks.
            left_out: Corpus → the first step that left it out, if one did.
            scorer: Made when one is needed.

        Raises:
            GovrayError: As the scorer's.
        """
        self._trained.add(leaf)
        due = measured(
            self._monitored.section,
            self._monitored.subjects,
            self._trained.rows,
            self._order.manifest,
            leaf.step,
        )
        if not due:
            return None
        profile = self._recorded.get((leaf.branch, leaf.step))
        if profile is None:
            profile = scorer().profile(
                leaf.step,
                [self._probe(corpus, leaf.step, left_out(corpus)) for corpus in sorted(due)],
                statistic=self._monitored.section.statistic,
                branch=leaf.branch,
            )
        else:
            return Seen(profile, ())  # decided before
        return Seen(profile, self.told.take(profile))

    def _probe(self, corpus: str, step: int, gate: int | None) -> Probe:
        rows = self._monitored.section.probe_rows
        chosen = self._probes.choose(corpus, step, rows, gate=gate)
        tensors, error = None, None
        try:
            tensors = self._read(chosen)
        except (GovrayError, OSError) as failed:  # the other ranks must hear of it
            error = str(failed)
        return Probe(
            corpus=corpus,
            adapter=self._adapters[corpus],
            probe_units=chosen.trained_records,
            reserve_units=chosen.reserve_records,
            tensors=tensors,
            error=error,
        )

    def _read(self, chosen: Chosen) -> Mapping[str, Tensor]:
        tokens, lengths = self._probes.read(chosen, own_rows(len(chosen), self._rank, self._world))
        whole = torch.from_numpy(tokens.astype(np.int64))
        targets = whole[:, 1:].clone()
        targets[torch.arange(targets.shape[1]) >= torch.from_numpy(lengths - 1).unsqueeze(1)] = (
            IGNORED
        )
        return {
            "tokens": whole[:, :-1].to(self._device),
            "targets": targets.to(self._device),
        }
