"""One governed optimizer step.

For every layer group l, over all ranks and accumulation steps,

    grad_l  =  (1 / N_l) · Σ_i  w_il · ∂ℓ_i/∂θ_l,      N_l = #{loss targets i : w_il > 0}

and where N_l = 0 there is no gradient, so the optimizer leaves l alone: no
momentum, no decay, no step count.

The order is fixed, and is that of ``GovernedStep.__call__``: start the agreement
→ forward and backward of each pass, while buckets that are complete are summed over
ranks (the agreement is awaited before the first) → second status → divide by N_l →
clip per domain → optimizer → third status.

With s_r(θ) the state of rank r after its optimizer, and f_r whether anything failed there, the
third status is F = f_0 ∨ … ∨ f_{R-1}, told to all ranks before any returns. If F, all raise: no
rank returns from a step, so none records, reports or commits it, unless every rank moved from
s_r to s_r'. Weights that moved on some ranks only are given up: the step function then refuses
every further call, and the run goes on from its last commit.

Invariants:

* With a policy that allows everything, the weights are bit for bit those of
  plain data-parallel training with the same reduction.
* An error on one rank is raised on all, the same: one before the optimizer before any weight
  moves, one in the optimizer before any rank goes on. ``SystemExit`` and its like are told to
  the others too, and then leave the rank that they were raised on as they are.
* What a domain's weights become depends on that domain's rows alone: its own
  count, its own clip, its own buckets, passes of its own.
* Gradients that exist before a step are dropped, and none is left after it: the base
  model's and those of the adapters that the step trains. Other adapters' are not looked at,
  and the optimizer does not see them (``idle_adapters.py``).

There is no mixed precision with loss scaling.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from govray.engine.batch import StepBatch
from govray.engine.collective.aggregator import Governed, Name, trainable
from govray.engine.collective.agreement import Agreement, Pending, RankFailure
from govray.engine.collective.allreduce import (
    BucketLayout,
    Domain,
    bucket_layout,
    divide,
    first_nonfinite,
    lay_out,
)
from govray.engine.collective.ddp import DDP
from govray.engine.collective.fsdp2 import FSDP2
from govray.engine.collective.meeting import Meeting, StoppedTogether
from govray.engine.collective.norm_samples import NormSample, gather, pieces_of
from govray.engine.collective.padding_pass import Ghosts
from govray.engine.gradients.forward import Forward, LossFn, PartLoss
from govray.engine.gradients.layer_derivatives import uncovered
from govray.engine.gradients.norm_accounting import Accounting
from govray.engine.gradients.pass_check import PassCheck, trial_rows, tried_as, try_pass
from govray.engine.gradients.pass_planner import Pass, Planner
from govray.engine.gradients.routing import refuse_inexact, resolve_parameters
from govray.engine.idle_adapters import idle_hidden
from govray.engine.model.adapters import Adapters
from govray.engine.model.keyed_dropout import key_dropout
from govray.engine.startup.optimizer_kinds import refuse_undriven
from govray.engine.startup.optimizer_trial import try_optimizer
from govray.engine.startup.row_trial import StartupTrial
from govray.errors import RankFailed, Refused, UsageError
from govray.governance.policy.route import Route, domains

_NEVER: Mapping[str, datetime] = MappingProxyType({})


_AGGREGATORS: Mapping[Name, Callable[..., Governed]] = MappingProxyType(
    {"governed": Governed, "ddp": DDP, "fsdp2": FSDP2}
)


@dataclass(frozen=True)
class StepResult:
    """What one step did, the same on all ranks.

    Attributes:
        step: The global step.
        loss: Mean over all loss targets of all ranks; NaN if there were none.
        stream_losses: The same mean per route stream that had loss targets.
        group_targets: N_l per layer group, 0 included.
        corpus_counts: (rows, loss targets) per corpus that was read.
        world_size: Number of ranks.
        grad_norms: Gradient norm before clipping, per domain that moved.
        time: Rank 0's clock when the step began, in seconds since the epoch; 0
            without a clock.
        norms: Gradient norms by corpus, on sampled steps.
        stop: Whether some rank was asked to stop the run.
        pause: Whether some rank was asked to commit and wait.
    """

    step: int
    loss: float
    stream_losses: Mapping[str, float]
    group_targets: Mapping[str, int]
    corpus_counts: Mapping[str, tuple[int, int]]
    world_size: int
    grad_norms: Mapping[str, float]
    time: int
    norms: NormSample | None = None
    stop: bool = False
    pause: bool = False


class GovernedStep:
    """Performs governed steps on one rank; call it with a batch and a loss function.

    Making one is collective, as is calling it. Without an initialised default
    process group it works alone.

    Args:
        model: Equal on all ranks. Its dropout modules are replaced by keyed ones.
        optimizer: Over exactly the parameters that may learn, adapters' included.
        groups: Layer group → FQNs, from ``layer_groups``.
        routes: Stream id → route, of every class that was admitted.
        adapters: The model's adapters; None if no route has one.
        seed: The run's seed, for dropout.
        policy_digest: ``sha256:…`` of the policy in force.
        plan_digest: ``sha256:…`` of the batch plan.
        corpora: Names of the run's corpora.
        clip_norm: Largest gradient norm of a domain; None does not clip.
        max_rows: Rows that go through the model together; None for all of a pass.
        clock: Seconds since the epoch, read on rank 0 once a step.
        valid_until: What expires, by name, and when; needs the clock.
        revoked: What is revoked, by a name of ``valid_until``, and from when on; read on rank
            0 once a step.
        decided: Steps below it repeat what was decided before, whatever the clock says.
        norms_every: One step of so many is a sample of gradient norms.
        bucket_layout: How a domain's parameters are put into buckets.
        aggregator: Who sums the base model's gradients over ranks: our buckets, torch's
            DDP, or its FSDP2 (for a model that was given to ``fully_shard``).
        collective_timeout: How long ranks wait for each other in exchanges on process groups
            of the step's own; None for torch's default. The default group has its own.

    Raises:
        Refused: The model can't be routed exactly, a route does not fit it, a
            parameter escapes governance, or ranks hold different set-ups.
        UsageError: A number is out of range, or the optimizer holds too little.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        groups: Mapping[str, Sequence[str]],
        routes: Mapping[str, Route],
        adapters: Adapters | None,
        seed: int,
        policy_digest: str,
        plan_digest: str,
        corpora: Sequence[str],
        clip_norm: float | None = None,
        max_rows: int | None = None,
        clock: Callable[[], float] | None = None,
        valid_until: Mapping[str, datetime] = _NEVER,
        revoked: Callable[[], Mapping[str, datetime]] = dict,
        decided: int = 0,
        norms_every: int = 50,
        bucket_layout: BucketLayout = bucket_layout,
        aggregator: Name = "governed",
        collective_timeout: timedelta | None = None,
    ) -> None:
        _require_positive("clip_norm", clip_norm)
        _require_positive("max_rows", max_rows)
        refuse_inexact(model)
        self.model = model
        self.optimizer = optimizer
        self._adapters = adapters or Adapters(model, {}, seed=seed)
        self._clip_norm = clip_norm
        self._corpora = tuple(corpora)
        self._left_out: frozenset[str] = frozenset()
        self._parameters = {
            **dict(model.named_parameters()),
            **dict(self._adapters.named_parameters()),
        }
        all_groups = {**dict(groups), **self._adapters.groups}
        self._adapter_ids = frozenset(id(p) for _, p in self._adapters.named_parameters())
        self._groups = tuple(all_groups)
        self._group_of = {name: group for group, names in all_groups.items() for name in names}
        refuse_undriven(optimizer)
        _require_governed(self._parameters, all_groups, optimizer)
        self._streams = {
            stream: resolve_parameters(route, all_groups, self._parameters)
            for stream, route in sorted(routes.items())
        }
        self._domains = self._lay_out(groups, routes, bucket_layout)
        keyed = key_dropout(model, seed)
        self._aggregator = _AGGREGATORS[aggregator](
            model, self._domains, bucket_layout, timeout=collective_timeout
        )
        self._ghosts = Ghosts(trainable(model), next(iter(self._parameters.values())).device)
        self._planner = Planner(
            self._streams,
            groups,
            [domain.groups for domain in self._domains],
            max_rows,
            {name: parameter.numel() for name, parameter in trainable(model).items()},
            self._aggregator.only_sliced,
        )
        if unknown := uncovered(model):
            self._planner.without("sliced", f"no gradient by rows for {', '.join(unknown)}")
        self._forward = Forward(
            model, self._parameters, self._adapters, keyed, zeros=self._aggregator.zeros
        )
        self._tried: set[tuple[object, ...]] = set()
        self._over: str | None = None
        self._trained = {name for domain in self._domains for name in domain.parameters}
        self._optimizer_tried = False
        self._startup = StartupTrial(self._forward, model, self._streams, max_rows)
        self._accounting = Accounting(model, self._group_of, norms_every, adapters=self._adapters)
        self._agreement = Agreement(
            groups=self._groups,
            corpora=self._corpora,
            policy_digest=policy_digest,
            plan_digest=plan_digest,
            setup={
                "parameters": {
                    name: [list(p.shape), str(p.dtype)] for name, p in self._parameters.items()
                },
                "groups": {group: list(names) for group, names in all_groups.items()},
                "streams": {name: dict(routed.weights) for name, routed in self._streams.items()},
                "buckets": {domain.name: domain.buckets for domain in self._domains},
                "aggregator": aggregator,
                "clipNorm": clip_norm,
                "normsEvery": norms_every,
                "seed": seed,
            },
            clock=clock,
            valid_until=valid_until,
            revoked=revoked,
            decided=decided,
            numbers=len(self._domains) + 3,
            timeout=collective_timeout,
        )

    @property
    def agreement(self) -> Agreement:
        """The exchanges of the run's ranks."""
        return self._agreement

    def require_sound(self) -> None:
        """Refuse to use weights that an earlier failure may have left different on the ranks.

        Raises:
            RankFailed: It has. Equal on all ranks.
        """
        if self._over is not None:
            raise RankFailed(
                self._over,
                do="Make model, optimizer and step anew, and go on from the last checkpoint",
            )

    def leave_out(self, corpora: Mapping[str, str]) -> None:
        """From the next step on, accept no row of these corpora. Equal on all ranks.

        Args:
            corpora: Corpus → its name in ``valid_until``, which no longer matters.
        """
        self._left_out = frozenset(corpora)
        self._agreement.leave_out(corpora.values())

    def __call__(self, batch: StepBatch, loss_fn: LossFn) -> StepResult:
        """Do one step, on all ranks together.

        Args:
            batch: This rank's part.
            loss_fn: Unreduced losses; positions whose target is −100 don't count.

        Raises:
            RankFailed: A rank could not load, compute, move its weights or reach the others,
                its gradient is not finite, or `require_sound` raises.
            Refused: Ranks differ in policy, plan or step.
            Lapsed: Something expired or was revoked. The step can be done again without it.
            UsageError: The batch or the losses have a wrong shape.
        """
        self.require_sound()
        passes, failure = self._plan(batch)
        touched = self._forward.reached(passes)
        _drop_gradients(touched)
        untried = self._try_optimizer()  # whatever failed here: shards may be gathered in it
        failure = failure or untried or self._try_rows(batch, loss_fn)
        try:
            targets = {} if failure else self._group_targets(batch)
            numbers = [*self._passes_needed(passes), int(batch.stop), int(batch.pause)]
            pending = self._agreement.start(batch.step, targets, batch.corpora, failure, numbers)
            sums = torch.zeros(len(self._streams), 2, dtype=torch.float64)

            @cache
            def live() -> tuple[Domain, ...]:
                agreed = pending.wait().group_targets
                found = [d for d in self._domains if any(agreed[group] for group in d.groups)]
                # Others may train what this rank has no rows of, and does not know of before.
                others = {n: p for d in found for n, p in d.parameters.items() if n not in touched}
                _drop_gradients(others)
                touched.update(others)
                return tuple(found)

            @cache
            def counts() -> dict[str, int]:
                agreed = pending.wait().group_targets
                names = (name for domain in live() for name in domain.parameters)
                return {name: agreed[self._group_of[name]] for name in names}

            meet = Meeting(self._agreement, pending, batch.step, torch.zeros_like(sums))
            self._aggregator.begin(counts, meet)
            # Σ_i w_il ∂ℓ_i/∂θ_l over this rank's rows; complete buckets leave at once.
            if failure is None:
                try:
                    passes = self._usable(passes, batch.step, loss_fn)
                    passes = self._with_ghosts(passes, pending)
                    sums = self._accumulate(passes, batch.step, loss_fn)
                except StoppedTogether:
                    pass
                except BaseException as error:  # whatever it is, all ranks must hear of it
                    failure = RankFailure.of(error)
            agreed = pending.wait()
            self._aggregator.send_rest()
            try:
                if meet.stopped is not None:
                    raise meet.stopped
                sums = self._agreement.conclude(batch.step, sums, failure)
            except BaseException:
                if self._aggregator.underway:
                    self._over = (
                        f"step {batch.step} failed inside {self._aggregator.host}, which keeps "
                        "what it had begun"
                    )
                raise
            finally:
                total = self._aggregator.sums()

            # (1 / N_l) Σ_ranks
            own = self._aggregator.own(counts())
            divide(live(), total, counts())
            norms = self._norms(live())
            self._stop_if_nonfinite(batch.step, norms, own)
            del own, total
            trained = [self._parameters[name] for name, count in counts().items() if count]
            self._move(batch.step, norms, trained)
        finally:
            self._aggregator.end()
            _drop_gradients(touched)
        return StepResult(
            step=batch.step,
            loss=_mean(*sums.sum(0).tolist()),
            stream_losses={
                stream: _mean(*row)
                for stream, row in zip(self._streams, sums.tolist(), strict=True)
                if row[1]
            },
            group_targets=agreed.group_targets,
            corpus_counts=agreed.corpus_counts,
            world_size=self._agreement.world_size,
            grad_norms={name: float(norm) for name, norm in norms.items()},
            time=agreed.time,
            norms=self._sample(batch.step, passes, agreed.group_targets),
            stop=agreed.most[-2] > 0,
            pause=agreed.most[-1] > 0,
        )

    def _move(
        self, step: int, norms: Mapping[str, Tensor], trained: Sequence[nn.Parameter]
    ) -> None:
        """Clip and let the optimizer move the weights: on all ranks, or none goes on."""
        self._over = f"step {step} failed when the weights of some ranks may have moved"
        failure: RankFailure | None = None
        try:
            self._clip(norms)
            with idle_hidden(self.optimizer, trained, self._adapter_ids):
                self.optimizer.step()
        except BaseException as error:  # whatever it is, all ranks must hear of it
            failure = RankFailure.of(error)
        self._agreement.confirm(step, failure)
        self._over = None

    def _plan(self, batch: StepBatch) -> tuple[list[Pass], RankFailure | None]:
        """This rank's passes, or why it has nothing to compute with."""
        if batch.error is not None:
            kind = Refused if batch.refused else RankFailed
            return [], RankFailure(f"could not load its batch: {batch.error}", kind)
        try:
            if used := sorted(self._left_out.intersection(batch.corpora)):
                raise Refused(
                    f"rows of corpus {used[0]}, whose credential no longer holds",
                    where=f"step {batch.step}",
                )
            batch.check(self._streams, self._corpora)
            return self._planner.passes(batch.micro_batches), None
        except Exception as error:  # whatever it is, all ranks must hear of it
            return [], RankFailure.of(error)

    def _try_optimizer(self) -> RankFailure | None:
        """Why the optimizer can't train, if so. All ranks do it together, once."""
        if self._optimizer_tried:
            return None
        self._optimizer_tried = True
        if all(routed.weights.keys() == self._trained for routed in self._streams.values()):
            return None
        try:
            try_optimizer(self.optimizer, self._domains, self._parameters, self._adapter_ids)
        except BaseException as error:  # whatever it is, all ranks must hear of it
            return RankFailure.of(error)
        return None

    def _try_rows(self, batch: StepBatch, loss_fn: LossFn) -> RankFailure | None:
        """Why a stream's rows, new to this process, can't train, if so. This rank's own affair."""
        if not self._aggregator.tries:
            return None
        try:
            self._startup(batch.micro_batches, batch.step, loss_fn)
        except BaseException as error:  # whatever it is, all ranks must hear of it
            return RankFailure.of(error)
        return None

    def _group_targets(self, batch: StepBatch) -> dict[str, int]:
        """This rank's share of N_l."""
        counts = dict.fromkeys(self._groups, 0)
        for micro_batch in batch.micro_batches:
            for group in self._streams[micro_batch.stream].groups:
                counts[group] += micro_batch.targets
        return counts

    def _passes_needed(self, passes: Sequence[Pass]) -> list[int]:
        """What this rank needs all to do: passes per domain, and to tell it what rows look like."""
        if passes:
            self._ghosts.see(passes[0].parts[0].tensors)
        by_domain = Counter(self._planner.domain_of(each) for each in passes)
        return [*self._aggregator.passes_needed(by_domain), int(not self._ghosts.known)]

    def _with_ghosts(self, passes: Sequence[Pass], pending: Pending) -> list[Pass]:
        """As many passes of each domain as the aggregator needs on all ranks."""
        if not self._aggregator.only_sliced:
            return list(passes)
        *needed, unknown, _, _ = pending.wait().most
        if unknown and any(needed):
            self._ghosts.learn(self._agreement)
        complete: list[Pass] = []
        for domain, least in enumerate(needed):
            own = [each for each in passes if self._planner.domain_of(each) == domain]
            stream = self._planner.stream_of(domain)
            complete += own + [self._ghosts.row(stream) for _ in range(least - len(own))]
        return complete

    def _accumulate(self, passes: Sequence[Pass], step: int, loss_fn: LossFn) -> Tensor:
        """Forward and backward of every pass.

        Returns:
            (sum of losses, number of loss targets) per stream, float64.
        """
        if self._accounting.due(step):
            self._accounting.take()  # what a step that failed left behind
        self._aggregator.expect(passes)
        losses: list[PartLoss] = []
        for place, each in enumerate(passes):
            observed = self._measuring(each, step)
            with (
                self._aggregator.during(place) as model,
                self._forward(each, step, partial(_on, model, loss_fn), observed) as parts,
            ):
                weighted = [
                    part.sum if share == 1.0 else part.sum * share
                    for part, share in zip(parts, each.shares, strict=True)
                ]
                total = sum(weighted[1:], weighted[0])
                self._aggregator.before_backward(place)
                total.backward()
            losses += [replace(part, sum=part.sum.detach()) for part in parts]
        self._require_routed(passes)
        return self._stream_sums(losses)

    def _stream_sums(self, losses: Sequence[PartLoss]) -> Tensor:
        # The first read of a value waits for the device, so all reads come last.
        sums = torch.zeros(len(self._streams), 2, dtype=torch.float64)
        places = {stream: place for place, stream in enumerate(self._streams)}
        for part in losses:
            if int(part.targets) != part.stated:
                raise Refused(
                    f"a micro-batch of stream {part.stream} holds {int(part.targets)} loss "
                    f"targets, row_targets says {part.stated}",
                    do="Count the targets that are not −100",
                )
            row = torch.tensor([float(part.sum), part.stated], dtype=torch.float64)
            sums[places[part.stream]] += row
        return sums

    def _usable(self, passes: Sequence[Pass], step: int, loss_fn: LossFn) -> list[Pass]:
        """The passes, without those that this model does not lend itself to."""
        usable: list[Pass] = []
        for each in passes:
            if each.method == "homogeneous" or tried_as(each) in self._tried:
                usable.append(each)
                continue
            if each.method in self._planner.reasons or not self._aggregator.tries:
                usable += self._planner.instead(each)
                continue
            trial = self._try(each, step, loss_fn)
            if trial.usable:
                self._tried.add(tried_as(each))
                usable.append(each)
                continue
            usable += self._planner.instead(each)
            if trial.usable is False:
                self._planner.without(each.method, trial.reason)
        return usable

    def _try(self, each: Pass, step: int, loss_fn: LossFn) -> PassCheck:
        @contextmanager
        def sums(small: Pass) -> Iterator[list[Tensor]]:
            with self._forward(small, step, loss_fn) as parts:
                yield [part.sum for part in parts]

        return try_pass(
            trial_rows(each), self._streams, self._parameters, sums, self._forward.places
        )

    def _measuring(self, each: Pass, step: int) -> AbstractContextManager[None]:
        """Around a pass of a sampled step: measure what each corpus contributes."""
        if not self._accounting.due(step) or not all(part.corpora for part in each.parts):
            return nullcontext()
        return self._accounting.measuring(pieces_of(each, self._streams))

    def _sample(
        self, step: int, passes: Sequence[Pass], group_targets: Mapping[str, int]
    ) -> NormSample | None:
        if not self._accounting.due(step):
            return None
        return gather(
            self._agreement,
            passes,
            self._accounting.take(),
            group_targets,
            routed=self._streams,
            corpora=self._corpora,
        )

    def _require_routed(self, passes: Sequence[Pass]) -> None:
        """Autograd did the masking; see that nothing else wrote a gradient."""
        allowed = {name for each in passes for name in each.weights}
        for name, parameter in self._forward.reached(passes).items():
            if parameter.grad is not None and name not in allowed:
                raise Refused(
                    f"{name} received a gradient that no route permits",
                    do="Let loss_fn leave requires_grad and .grad alone",
                )

    def _norms(self, live: Sequence[Domain]) -> dict[str, Tensor]:
        """The gradient norm of each domain that has one."""
        norms = {}
        for domain in live:
            gradients = _present({name: p.grad for name, p in domain.parameters.items()})
            if gradients:
                norms[domain.name] = self._aggregator.norm(gradients)
        return norms

    def _stop_if_nonfinite(
        self, step: int, norms: Mapping[str, Tensor], own: Mapping[str, Tensor | None]
    ) -> None:
        """Raise on all ranks alike, for they hold the same sums.

        Args:
            step: The step.
            norms: Of all domains; a norm is finite only if all its gradients are.
            own: This rank's gradients, before they were summed.
        """
        if all(math.isfinite(float(norm)) for norm in norms.values()):
            return
        held = _present({name: p.grad for name, p in self._parameters.items()})
        summed = {name: self._aggregator.local(gradient) for name, gradient in held.items()}
        names = list(self._parameters)
        found = [first_nonfinite(_present(own)), first_nonfinite(summed)]
        row = torch.tensor([-1 if name is None else names.index(name) for name in found])
        rows = [each.tolist() for each in self._agreement.exchange(row)]
        for rank, (first, _) in enumerate(rows):
            if first >= 0:
                raise RankFailed(
                    f"the gradient of {names[first]} is not finite",
                    where=f"rank {rank}, step {step}",
                    do="All ranks stopped before any weight moved. Lower the learning rate, "
                    "or look at this step's rows",
                )
        for _, first in rows:
            if first >= 0:
                raise RankFailed(
                    f"the gradient of {names[first]} is finite on every rank, but its sum over "
                    "ranks is not",
                    where=f"step {step}",
                    do="Lower the learning rate, or use a dtype with a larger range",
                )
        # Otherwise gradients are finite, and only their norm overflows.

    def _clip(self, norms: Mapping[str, Tensor]) -> None:
        """Clip each domain by its own norm."""
        if self._clip_norm is None:
            return
        for domain in self._domains:
            if domain.name not in norms:
                continue
            held = self._aggregator.held
            for mine in (True, False):  # torch does not scale shards and whole tensors together
                parameters = [p for n, p in domain.parameters.items() if (n in held) != mine]
                clip_grads_with_norm_(parameters, self._clip_norm, norms[domain.name])

    def _lay_out(
        self,
        groups: Mapping[str, Sequence[str]],
        routes: Mapping[str, Route],
        layout: BucketLayout,
    ) -> tuple[Domain, ...]:
        order = {group: place for place, group in enumerate(groups)}
        readers: dict[str, set[str]] = {name: set() for name in self._parameters}
        for stream, routed in self._streams.items():
            for name in routed.weights:
                readers[name].add(stream)
        streams = {name: frozenset(members) for name, members in readers.items()}
        found = domains(routes.values(), tuple(groups))
        place_of = {group: place for place, members in enumerate(found) for group in members}
        parameters: list[dict[str, nn.Parameter]] = [{} for _ in found]
        for name, parameter in self._parameters.items():
            place = place_of.get(self._group_of[name])
            if place is not None and parameter.requires_grad:
                parameters[place][name] = parameter
        return tuple(
            lay_out(
                min(members, key=lambda group: (order.get(group, len(order)), group)),
                members,
                own,
                layout,
                streams,
            )
            for members, own in zip(found, parameters, strict=True)
        )


def _drop_gradients(parameters: Mapping[str, nn.Parameter]) -> None:
    for parameter in parameters.values():
        parameter.grad = None


def _on(model: nn.Module, loss_fn: LossFn, _: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """The losses of the model that the aggregator wants called."""
    return loss_fn(model, tensors)


def _present(gradients: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


def _require_positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise UsageError(f"{name} is {value}", do="Give a number above 0, or None")


def _require_governed(
    parameters: Mapping[str, nn.Parameter],
    groups: Mapping[str, Sequence[str]],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Every parameter is in one group, and the optimizer moves these parameters only."""
    listed = [name for names in groups.values() for name in names]
    if sorted(listed) != sorted(parameters):
        odd = sorted(set(parameters) ^ set(listed)) or sorted(
            {n for n in listed if listed.count(n) > 1}
        )
        raise Refused(
            f"the layer groups do not hold each parameter exactly once: see {odd[0]}",
            where="groups",
            do="Take the groups from layer_groups(model, ...)",
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in parameters.items():
        if parameter.requires_grad and id(parameter) not in held:
            raise UsageError(
                f"the optimizer does not hold parameter {name}, which requires grad",
                where="optimizer",
                do="Add it, or freeze it with requires_grad_(False)",
            )
    if len(held - {id(parameter) for parameter in parameters.values()}):
        raise Refused(
            "the optimizer holds a parameter that is neither the model's nor an adapter's",
            where="optimizer",
            do="No policy covers it: leave it out, or make it a parameter of the model",
        )
