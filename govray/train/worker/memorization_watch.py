"""The monitor in a run: which corpora it measures after which step, and what follows.

The driver says what is monitored (`monitored`). Each worker's `MemorizationWatch` reads probe rows,
has a scorer measure them, and decides by the run's incidents (``governance/record/incidents.py``).
A recorded profile is not measured again: decisions rest on the first one, whatever a later device
measures.

Invariants:

* Every rank holds the same profile, makes the same decisions, and acts on them from the next step
  on.
* Scoring is collective and leaves no trace in the training (``engine/memorization/monitor.py``).

A worker reads probe rows in the prepared folder itself, so it must lie where workers can read it.
`gating` leaves rows out, and `resume_point` finds the checkpoint for a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from govray.data.probe_rows import Chosen, Probes
from govray.engine.batch import IGNORED
from govray.engine.gradients.forward import LossFn
from govray.engine.memorization.probe_sharing import Probe, own_probe_rows
from govray.errors import GovrayError
from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.e_process import MOST_TO_ONE, effect
from govray.governance.record.entropy_profile import EntropyProfile, MonitorDecision
from govray.governance.record.incidents import Incidents, Trained, measured
from govray.governance.record.ledger import AnyLeaf, Leaf
from govray.storage.place import place

if TYPE_CHECKING:
    from govray.train.inputs.order import Order


class Scorer(Protocol):
    """Measures probes; `govray.engine.memorization.monitor.Monitor` by default."""

    def profile(
        self, step: int, probes: Sequence[Probe], *, section: Monitoring, branch: int
    ) -> EntropyProfile:
        """Measure these corpora with the model as it is. Collective, with the same result on all
        ranks."""


@dataclass(frozen=True)
class Seen:
    """The result of a watched step.

    Attributes:
        profile: What was measured after it, or recorded before.
        decisions: What the policy makes of it.
        memorization: M, of the newest profile of each corpus (``e_process.effect``). A profile may
            be of some corpora alone, whose turn it is.
    """

    profile: EntropyProfile
    decisions: tuple[MonitorDecision, ...]
    memorization: float


class MemorizationWatch:
    """The monitor of one worker's run.

    Args:
        told: The incidents of all that was recorded, on the run's branch.
        recorded: The recorded profiles, which ``told`` includes.
        leaves: Of the steps before, as the commit holds them.
        scorer: Makes what measures memorization, for a loss function; once, when it is needed.
    """

    def __init__(
        self,
        order: Order,
        told: Incidents,
        recorded: Iterable[EntropyProfile],
        leaves: Iterable[AnyLeaf],
        *,
        device: torch.device,
        scorer: Callable[[LossFn], Scorer],
    ) -> None:
        assert order.monitored is not None
        self.told = told
        self._order = order
        self._monitored = order.monitored
        self._recorded = {(each.branch, each.step): each for each in recorded}
        self._probes = Probes(place(order.prepared), order.manifest, order.plan)
        distributed = dist.is_initialized()
        self._rank = dist.get_rank() if distributed else 0
        self._world = dist.get_world_size() if distributed else 1
        self._device = device
        self._make_scorer = scorer
        self._scorer: Scorer | None = None
        self._trained = Trained()
        for leaf in leaves:
            if isinstance(leaf, Leaf):
                self._trained.add(leaf)
        routes = {c.corpus: order.routes.get(s.id) for s in order.plan.streams for c in s.corpora}
        self._adapters = {c: route.adapter if route else None for c, route in routes.items()}

    def due(self, step: int) -> bool:
        """Whether anything may be measured after a step."""
        return self._monitored.section.due(step)

    def after(
        self, leaf: Leaf, left_out: Callable[[str], int | None], loss_fn: LossFn
    ) -> Seen | None:
        """Measure what is due after a step, and decide. Collective.

        Args:
            leaf: Of the step; equal on all ranks.
            left_out: Corpus → the first step that left it out, if one did.
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
            self._scorer = self._scorer or self._make_scorer(loss_fn)
            profile = self._scorer.profile(
                leaf.step,
                [self._probe(corpus, leaf.step, left_out(corpus)) for corpus in sorted(due)],
                section=self._monitored.section,
                branch=leaf.branch,
            )
            decisions = self.told.take(profile)
        else:
            decisions = ()  # decided before
        section, subjects = self._monitored.section, self._monitored.subjects
        return Seen(profile, decisions, effect(self.told.history, section, subjects, leaf.step))

    def _probe(self, corpus: str, step: int, gate: int | None) -> Probe:
        held = self._order.manifest.reserve_rows(corpus)
        rows = min(self._monitored.section.probe_rows, MOST_TO_ONE * held)
        chosen = self._probes.choose(corpus, step, rows, gate=gate)
        tensors, error = None, None
        try:
            tensors = self._read(chosen)
        except (GovrayError, OSError) as failed:  # the other ranks must learn of it
            error = str(failed)
        return Probe(
            corpus=corpus,
            adapter=self._adapters[corpus],
            probe_units=chosen.trained_records,
            reserve_units=chosen.reserve_records,
            tensors=tensors,
            error=error,
            tested=chosen.tested,
        )

    def _read(self, chosen: Chosen) -> Mapping[str, Tensor]:
        tokens, lengths = self._probes.read(
            chosen, own_probe_rows(len(chosen), self._rank, self._world)
        )
        whole = torch.from_numpy(tokens.astype(np.int64))
        targets = whole[:, 1:].clone()
        targets[torch.arange(targets.shape[1]) >= torch.from_numpy(lengths - 1).unsqueeze(1)] = (
            IGNORED
        )
        return {
            "tokens": whole[:, :-1].to(self._device),
            "targets": targets.to(self._device),
        }
