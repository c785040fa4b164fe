"""One governed optimizer step over any framework. For every layer group l, over all ranks,

    grad_l  =  (1 / N_l) · Σ_i  w_il · ∂ℓ_i/∂θ_l,      N_l = #{loss targets i : w_il > 0}

and where N_l = 0 there is no gradient, so the optimizer leaves l alone: no momentum, no decay, no
step count.

The order is fixed, and is that of ``RoutedStep.__call__``: a pass for each route → the exchange →
sums over processes, divided by N_l. Then: norm of each domain → clip per domain → optimizer → the
second status → the weights are put into the model.

Invariants:

* No weight of any rank is replaced before all ranks have computed theirs.
* What a domain's weights become depends on that domain's rows alone: its own count, its own clip,
  its own sums, passes of its own.
* Every pass has rows of one route.
* An error on one rank is raised on all. A rank takes part in every sum, whatever failed before it.

Nothing overlaps the exchange. Gradient norms by corpus are not measured.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from govray.engine.steps.batch import IGNORED, AfterStep, MicroBatch, StepBatch
from govray.engine.steps.first_exchange import FirstExchange, Terms
from govray.engine.steps.rank_failure import FirstFailure, RankFailure, status, stop_if_failed
from govray.engine.steps.routed import (
    Routed,
    count_targets,
    named_domains,
    require_each_once,
    resolve_parameters,
)
from govray.engine.steps.step_gates import GatedStep
from govray.engine.steps.step_result import StepResult, loss_per_target
from govray.errors import InfrastructureFailed, RankFailed, Refused, UsageError
from govray.governance.policy.route import Route

_TEXT_WORDS = 512


class RoutedStep(GatedStep):
    """Performs governed steps in one process; call it with a batch and a loss function.

    Making one is collective, as is calling it.

    Args:
        framework: Equal on all ranks.
        groups: Layer group → names of parameters, adapters' groups included, in canonical order.
        routes: Stream id → route, of every class that was admitted, alternatives included.
        alternatives: Stream id → digests of the other routes that its rows may take: those of
            later phases, and of a gate's fallback.
        terms: What the run's steps rest on: policy, plan, corpora, and how long each holds.
        setup: Anything else (JSON values) that must be equal on all ranks.
        clip_norm: Largest gradient norm of a domain; None does not clip.
        max_rows: Rows that go through the model together; None for all of a route.

    Raises:
        Refused: A route does not fit the groups, a parameter is in no group or two, or ranks hold
            different set-ups.
    """

    def __init__(
        self,
        framework: Framework,
        *,
        groups: Mapping[str, Sequence[str]],
        routes: Mapping[str, Route],
        terms: Terms,
        alternatives: Mapping[str, Collection[str]] = MappingProxyType({}),
        setup: Any = None,
        clip_norm: float | None = 1.0,
        max_rows: int | None = None,
    ) -> None:
        for name, value in (("clip_norm", clip_norm), ("max_rows", max_rows)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}", do="Give a number above 0, or None")
        parameters = framework.parameters()
        require_each_once(parameters, groups)
        self.framework = framework
        self.groups = groups
        self._group_of = {name: group for group, names in groups.items() for name in names}
        self._streams = {
            stream: resolve_parameters(route, groups, parameters)
            for stream, route in sorted(routes.items())
        }
        self._alternatives = alternatives
        base = [group for group in groups if not group.startswith("adapter:")]
        self._domains = named_domains(base, routes, alternatives)
        self._domain_of = {g: name for name, members in self._domains.items() for g in members}
        self._clip_norm = clip_norm
        self._max_rows = max_rows
        self._terms = terms
        self._first = FirstExchange(terms, tuple(groups), numbers=1)
        super().__init__(self._first.leave_out)
        facts = {
            "groups": {group: list(names) for group, names in groups.items()},
            "streams": {name: dict(routed.weights) for name, routed in self._streams.items()},
            "alternatives": {name: sorted(each) for name, each in sorted(alternatives.items())},
            "clipNorm": clip_norm,
            "framework": setup,
        }
        self._first.require_one_setup(framework.gather(self._first.setup_row(facts)))

    def __call__(self, batch: StepBatch, loss_fn: Callable[..., Any]) -> StepResult:
        """Do one step, on all ranks together. Collective.

        Args:
            batch: This rank's part; its tensors are numpy's.
            loss_fn: Unreduced losses; positions whose target is −100 don't count.

        Raises:
            RankFailed: A rank could not load or compute, or its gradient is not finite.
            Refused: Ranks differ in policy, plan or step, or the model can't be routed.
            NoLongerValid: Something expired or was revoked. The step can be done again without it.
            UsageError: The batch or the losses have a wrong shape.
            InfrastructureFailed: Another process is gone.
        """
        here = FirstFailure()
        sums: Arrays = {}
        losses = [0.0] * (2 * len(self._streams))
        targets: Mapping[str, int] = {}
        with here.noted():
            self._check(batch)
            sums = self._passes(batch, loss_fn, losses)
            targets = count_targets(self.groups, self._streams, batch.micro_batches)
        rank = self.framework.rank
        asked = (int(batch.asked),)
        row = self._first.row(rank, batch.step, targets, batch.corpora, here.failure, asked)
        rows = self.framework.gather(row)
        self._first.stop_if_failed(rows, here.failure, self._texts)
        agreed = self._first.settle(rows)

        averages: dict[str, Arrays] = {}
        moved: list[Moved] = []
        norms: dict[str, float] = {}
        after = FirstFailure()
        for domain, names in self._live(agreed.group_targets).items():
            # After a failure too: the others wait in the sum of each domain.
            with after.noted(but=(InfrastructureFailed,)):
                averages[domain] = self._average(names, sums, agreed.group_targets)
        with after.noted():
            norms = {domain: self.framework.norm(own) for domain, own in averages.items()}
            self._require_finite(batch.step, norms, averages)
            for domain, gradients in averages.items():
                moved += self._moved(batch.step, gradients, self._scale(norms[domain]))
        totals = self._conclude(batch.step, losses, after.failure)
        self._put(moved)
        return StepResult(
            step=batch.step,
            loss=loss_per_target(sum(totals[::2]), sum(totals[1::2])),
            stream_losses={
                stream: loss_per_target(total, count)
                for stream, total, count in zip(
                    self._streams, totals[::2], totals[1::2], strict=True
                )
                if count
            },
            group_targets=agreed.group_targets,
            corpus_counts=agreed.corpus_counts,
            world_size=self.framework.world_size,
            grad_norms=norms,
            time=agreed.time,
            asked=AfterStep(agreed.most[0]),
        )

    def _put(self, moved: Sequence[Moved]) -> None:
        """All ranks have computed theirs; from here on a failure leaves this rank behind."""
        try:
            self.framework.put(moved)
        except Exception as error:
            self._over = f"new weights were not taken over: {type(error).__name__}: {error}"
            raise

    def _check(self, batch: StepBatch) -> None:
        """See that the batch is one of this run, and counts its targets rightly."""
        self._require_accepted(batch, self._streams, self._terms.corpora, self._alternatives)
        for each in batch.micro_batches:
            targets = each.tensors["targets"].reshape(len(each.positions), -1)
            counted = (targets != IGNORED).sum(1).tolist()
            if counted != list(each.row_targets):
                raise Refused(
                    f"a micro-batch of stream {each.stream} holds {sum(counted)} loss "
                    f"targets, row_targets says {each.targets}",
                    where=f"step {batch.step}",
                    do="Count the targets that are not −100",
                )

    def _passes(self, batch: StepBatch, loss_fn: Callable[..., Any], losses: list[float]) -> Arrays:
        """Σ_i w_il ∂ℓ_i/∂θ_l over this rank's rows; (loss, targets) of each route is added."""
        sums: Arrays = {}
        totals: list[tuple[int, Any, int]] = []
        places = {stream: 2 * place for place, stream in enumerate(self._streams)}
        for part in self._planned(batch.micro_batches):
            routed = self._streams[part.route]
            total, sums = self.framework.differentiate(part, routed, batch.step, loss_fn, sums)
            totals.append((places[part.route], total, part.targets))
        for place, total, targets in totals:
            losses[place] += float(total)
            losses[place + 1] += targets
        return sums

    def _planned(self, micro_batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The passes in the order of domains, then of routes; none has more than ``max_rows``."""
        domains = [*self._domains]

        def place(each: MicroBatch) -> tuple[int, str, str]:
            group = next(iter(self._streams[each.route].groups))
            return domains.index(self._domain_of[group]), each.route, each.stream

        return [
            each.cut(start, start + size)
            for each in sorted(micro_batches, key=place)
            for size in [self._max_rows or len(each.positions)]
            for start in range(0, len(each.positions), size)
        ]

    def _live(self, targets: Mapping[str, int]) -> dict[str, list[str]]:
        """Domain → names of its parameters with N_l > 0, if there are any; the same everywhere."""
        found: dict[str, list[str]] = {}
        for name, group in self._group_of.items():
            if targets[group]:
                found.setdefault(self._domain_of[group], []).append(name)
        return {domain: found[domain] for domain in self._domains if domain in found}

    def _average(self, names: Sequence[str], sums: Arrays, targets: Mapping[str, int]) -> Arrays:
        """(1 / N_l) Σ_ranks, of one domain. Collective."""
        return self.framework.average(sums, {n: targets[self._group_of[n]] for n in names})

    def _require_finite(
        self, step: int, norms: Mapping[str, float], averages: Mapping[str, Arrays]
    ) -> None:
        """A norm is finite only if all its gradients are; all ranks hold the same ones."""
        for domain, gradients in averages.items():
            if math.isfinite(norms[domain]):
                continue
            for name, gradient in gradients.items():
                if not math.isfinite(self.framework.norm({name: gradient})):
                    raise RankFailed(
                        f"the gradient of {name} is not finite",
                        where=f"step {step}",
                        do="All ranks stopped before any weight moved. Lower the learning rate, "
                        "or look at this step's rows",
                    )

    def _scale(self, length: float) -> float:
        """By what a domain with this norm is clipped: torch's formula."""
        return 1.0 if self._clip_norm is None else min(self._clip_norm / (length + 1e-6), 1.0)

    def _moved(self, step: int, gradients: Arrays, scale: float) -> list[Moved]:
        """What the optimizer makes of every layer group that has gradients."""
        return [
            self.framework.move(
                group, step, {name: gradients[name] for name in self.groups[group]}, scale
            )
            for group in dict.fromkeys(self._group_of[name] for name in gradients)
        ]

    def _conclude(
        self, step: int, losses: Sequence[float], failure: RankFailure | None
    ) -> list[float]:
        """The second status, with the sums behind the step's losses. Collective."""
        form = f"={len(losses)}"
        bits = struct.unpack(f"{form}q", struct.pack(f"{form}d", *losses))
        rows = self.framework.gather([status(failure), *bits])
        statuses = [row[0] for row in rows]
        stop_if_failed(statuses, [step] * len(rows), failure, self._texts)
        each = [struct.unpack(f"{form}d", struct.pack(f"{form}q", *row[1:])) for row in rows]
        return [sum(column) for column in zip(*each, strict=True)]

    def _texts(self, text: str) -> list[str]:
        """Every process's text, by rank, cut where it is long. Collective."""
        own = text.encode()[: 8 * _TEXT_WORDS].ljust(8 * _TEXT_WORDS, b"\0")
        rows = self.framework.gather(struct.unpack(f"={_TEXT_WORDS}q", own))
        sent = (struct.pack(f"={_TEXT_WORDS}q", *row) for row in rows)
        return [each.rstrip(b"\0").decode(errors="ignore") for each in sent]


Arrays = Mapping[str, Any]
"""Parameters, or their gradients, by name."""

Moved = Any
"""New weights and states that stand beside the old ones, not yet in the model."""


class Framework(Protocol):
    """A model, its adapters and its optimizer, and the processes that train it.
    `RoutedStep` governs it by these functions, and looks into no array."""

    rank: int
    world_size: int

    def parameters(self) -> Arrays:
        """Every parameter as it is now, adapters' included: ``adapter:<name>/<FQN>``."""

    def differentiate(
        self, part: MicroBatch, routed: Routed, step: int, loss_fn: Callable[..., Any], sums: Arrays
    ) -> tuple[Any, Arrays]:
        """One pass: rows of one route through the model.

        Args:
            routed: Their route. Its weights scale the gradient of each parameter that may learn.
            step: The global step; it keys the rows' dropout with stream and position.
            loss_fn: The user's: unreduced losses. Positions whose target is −100 don't count.
            sums: Gradients of the passes before it.

        Returns:
            Σ of the losses, and ``sums`` with Σ_i w_il ∂ℓ_i/∂θ_l added for the permitted
            parameters. A parameter outside the route has no entry: zeros would be another thing.
        """

    def gather(self, row: Sequence[int]) -> Sequence[Sequence[int]]:
        """Every process's row of int64, by rank. Collective."""

    def average(self, sums: Arrays, counts: Mapping[str, int]) -> Arrays:
        """(1 / N_l) Σ over processes, of one domain. Collective.

        Where something fails on this rank before the sum, it still takes part, with zeros, and
        raises afterwards. Else the others would wait for it. No weight moves then.

        Args:
            sums: This rank's. A name that it lacks counts as zeros.
            counts: N_l by name, above 0, equal on all ranks: exactly these are summed.

        Raises:
            InfrastructureFailed: The sum itself broke off. This ends the process.
        """

    def norm(self, gradients: Arrays) -> float:
        """The Euclidean norm of gradients; it waits for the device."""

    def move(self, group: str, step: int, gradients: Arrays, scale: float) -> Moved:
        """What the optimizer makes of one layer group; the model stays as it is.

        Args:
            group: Its name. Momentum and counts of a group are its own.
            step: The plan's, which schedules read.
            gradients: The group's.
            scale: They are multiplied by it first: 1 unless the domain is clipped.
        """

    def put(self, moved: Sequence[Moved]) -> None:
        """Let the model and the optimizer have what `move` made."""
