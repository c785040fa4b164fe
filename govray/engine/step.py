"""One governed optimizer step.

For every layer group l, over all ranks and accumulation steps,

    grad_l  =  (1 / N_l) · Σ_i  w_il · ∂ℓ_i/∂θ_l,      N_l = #{loss targets i : w_il > 0}

and where N_l = 0 there is no gradient, so the optimizer leaves l alone: no
momentum, no decay, no step count.

The order is fixed, and is that of ``GovernedStep.__call__``: plan passes → begin the exchange →
forward and backward of each pass. Then: divide by N_l → norm of each domain → read → second status
→ clip per domain → optimizer → third status. During backward, complete buckets are summed over
ranks; the exchange is awaited before the first. The read is the step's one wait for the device
(``device_reading.py``): up to there, everything is queued.

Let s_r(θ) be the state of rank r after its optimizer, and f_r whether anything failed there. The
third status is F = f_0 ∨ … ∨ f_{R-1}, known to all ranks before any returns. If F, all raise: no
rank returns from a step, so none records, reports or commits it, unless every rank moved from s_r
to s_r'. Weights that moved on some ranks only are given up. The step function then refuses every
further call, and the run goes on from its last commit.

A *late* step has no read before the optimizer. It is queued whole, and *confirmed* later: when the
kernels of the next step up to its norms are queued, or by `GovernedStep.confirm`. Only then is
known what the device found, and only then is there a result. A tensor on the device keeps the
optimizer from moving anything if some domain's norm is not finite. So a step that fails there
leaves all weights and moments as they were. The error comes one step late, before the optimizer of
the next step, which is dropped. What was queued can't be done again: the step function is over.
Steps are late on a GPU, with an optimizer that `can_stay`, unless ranks share the model.

Invariants:

* With a policy that allows everything, the weights are bit for bit those of
  plain data-parallel training with the same reduction.
* An error on one rank is raised on all. An error before the optimizer is raised before any weight
  moves, one in the optimizer before any rank goes on. ``SystemExit`` and its like are told to the
  others too, and then leave the rank that they were raised on as they are.
* What a domain's weights become depends on that domain's rows alone: its own
  count, its own clip, its own buckets, passes of its own.
* Gradients that exist before a step are dropped, and none is left after it. That holds for the base
  model and the adapters that the step trains. Other adapters' are not visited, and the optimizer
  does not see them (``model/optimizer_view.py``).

There is no mixed precision with loss scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from govray.engine.batch import StepBatch
from govray.engine.collective.accumulation import Accumulation
from govray.engine.collective.aggregator import Governed, trainable
from govray.engine.collective.agreement import Agreement
from govray.engine.collective.allreduce import BucketLayout, bucket_layout, divide
from govray.engine.collective.ddp import DDP
from govray.engine.collective.exchange import Exchange, FreshGradients, Needs
from govray.engine.collective.fsdp2 import FSDP2
from govray.engine.collective.gradient_clip import GradientClip
from govray.engine.collective.norm_samples import NormSampler
from govray.engine.collective.padding_pass import Padding
from govray.engine.collective.routed_model import RoutedModel, route_model
from govray.engine.collective.sharded_row_trial import ShardedRowTrial
from govray.engine.collective.step_settings import AggregatorName, StepSettings
from govray.engine.gradients.device_reading import StepReading
from govray.engine.gradients.forward import Forward, LossFn, PartLoss
from govray.engine.gradients.layer_coverage import uncovered
from govray.engine.gradients.pass_check import PassTrials
from govray.engine.gradients.pass_planner import Pass, Planner
from govray.engine.gradients.routing import refuse_inexact
from govray.engine.graphs.pass_graphs import CudaCapture, PassGraphs
from govray.engine.model.adapters import Adapters
from govray.engine.model.compiled_blocks import compile_blocks, recompute_blocks
from govray.engine.model.keyed_dropout import key_dropout
from govray.engine.model.optimizer_view import optimizer_view
from govray.engine.startup.optimizer_kinds import can_stay, refuse_undriven
from govray.engine.startup.row_trial import StartupTrial
from govray.engine.startup.weight_watch import WeightWatch
from govray.engine.startup.whole_mesh import refuse_other_meshes
from govray.engine.steps.first_exchange import Agreed, Terms
from govray.engine.steps.rank_failure import FirstFailure
from govray.engine.steps.step_gates import GatedStep
from govray.engine.steps.step_result import StepResult, loss_per_target
from govray.errors import UsageError
from govray.governance.policy.route import Route

_AGGREGATORS: Mapping[AggregatorName, Callable[..., Governed]] = MappingProxyType(
    {"governed": Governed, "ddp": DDP, "fsdp2": FSDP2}
)


@dataclass(frozen=True)
class _Queued:
    """A step whose kernels are queued. ``read`` waits for the device."""

    step: int
    passes: Sequence[Pass]
    agreed: Agreed
    needs: Needs
    read: Callable[[], StepReading]
    largest: Mapping[str, Tensor]


class GovernedStep(GatedStep):
    """Performs governed steps on one rank; call it with a batch and a loss function.

    `build_step` makes one. Making one is collective, as is calling it. Without an initialised
    default process group it works alone.

    Args:
        routed: The model, equal on all ranks.
        optimizer: Over exactly the parameters that may learn, adapters' included.
        watch: Over the optimizer and its model; None where nothing is to be kept apart.
        try_rows: Before rows of a stream train; None where a rank may not try by itself.
        late: Whether a step is confirmed when the next one is queued; for an optimizer that
            `can_stay`.
    """

    def __init__(
        self,
        routed: RoutedModel,
        optimizer: torch.optim.Optimizer,
        *,
        accumulation: Accumulation,
        aggregator: Governed,
        agreement: Agreement,
        clip: GradientClip,
        watch: WeightWatch | None,
        try_rows: StartupTrial | None,
        late: bool,
    ) -> None:
        super().__init__(agreement.leave_out)
        self.routed = routed
        self.optimizer = optimizer
        self.accumulation = accumulation
        self.agreement = agreement
        self._aggregator = aggregator
        self._clip = clip
        self._watch = watch
        self._try_rows = try_rows
        self._late = late
        self._queued: _Queued | None = None

    def __call__(self, batch: StepBatch, loss_fn: LossFn) -> StepResult:
        """Do one step, on all ranks together, and wait for it. Collective.

        Args:
            batch: This rank's part.
            loss_fn: Unreduced losses; positions whose target is −100 don't count.

        Raises:
            RankFailed: A rank could not load, compute, move its weights or reach the others,
                its gradient is not finite, or `require_sound` raises.
            Refused: Ranks differ in policy, plan or step.
            NoLongerValid: Something expired or was revoked. The step can be done again without it.
            UsageError: The batch or the losses have a wrong shape, or a step waits for `confirm`.
        """
        if self._queued is not None:
            raise UsageError(
                "an earlier step is not confirmed, and its result would be lost",
                where=f"step {self._queued.step}",
                do="Call confirm() first, and record what it returns",
            )
        (result,) = self.queue(batch, loss_fn, now=True)
        return result

    def queue(
        self, batch: StepBatch, loss_fn: LossFn, *, now: bool = False
    ) -> Sequence[StepResult]:
        """Do one step as `__call__` does, and wait for it only if it is not late. Collective.

        Args:
            now: Wait for it in any case. A step that some rank asks to be the last is waited for.

        Returns:
            The steps that are confirmed by now and were not before, in order: the late one before,
            and this one if it was waited for.

        Raises:
            GovrayError: As `__call__`; of the step before, what `confirm` raises. This step is
                dropped then.
        """
        self.require_sound()
        here = FirstFailure()
        passes = self._plan(batch, here)
        with FreshGradients(self.accumulation.forward.reached(passes)) as fresh:
            self._try(batch, passes, loss_fn, here)
            with self._exchange(batch, passes, fresh, here) as exchange:
                parts: Sequence[PartLoss] = ()
                if here.failure is None:
                    with here.noted():  # Σ_i w_il ∂ℓ_i/∂θ_l over this rank's rows
                        passes, parts = self.accumulation(
                            batch.micro_batches, passes, exchange, loss_fn
                        )
                agreed = exchange.agreed
                norms: Mapping[str, Tensor] = {}
                wait: Callable[[], StepReading] = partial(StepReading.nothing, self.routed.streams)
                read = wait()
                with self._owed(exchange):
                    if here.failure is None and exchange.stopped is None:
                        with here.noted():
                            norms = self._divide(exchange)  # (1 / N_l) Σ_ranks
                            wait = self._reading(batch.step, parts, norms)
                            if not self._late:
                                read = wait()
                    losses = exchange.conclude(read.losses, here.failure)
                largest = self._aggregator.largest()
                queued = _Queued(batch.step, passes, agreed, exchange.needs, wait, largest)
                before = self.confirm()
                if not self._late:
                    self._clip.require_finite(batch.step, read.norms, largest)
                self._move(exchange, norms)
        if not self._late:
            return [self._result(queued, read, losses)]
        self._queued = queued
        now = now or bool(queued.needs.asked)
        return [each for each in (before, self.confirm() if now else None) if each is not None]

    def confirm(self) -> StepResult | None:
        """Wait for the step that was queued last. Collective.

        Returns:
            Its result; None if no step waits.

        Raises:
            RankFailed: A gradient was not finite. Weights are as before that step.
            Refused: A micro-batch holds more or fewer loss targets than it says.
        """
        self.require_sound()
        queued, self._queued = self._queued, None
        if queued is None:
            return None
        self._over = f"step {queued.step} was queued, and could not be confirmed"
        read, here = StepReading.nothing(self.routed.streams), FirstFailure()
        with here.noted():
            read = queued.read()
        losses = self.agreement.conclude(queued.step, read.losses, here.failure, moved=True)
        self._clip.require_finite(queued.step, read.norms, queued.largest, moved=True)
        self._over = None
        return self._result(queued, read, losses)

    def _result(self, queued: _Queued, read: StepReading, losses: Tensor) -> StepResult:
        """Of a step that all ranks did. Collective, if it is sampled."""
        agreed = queued.agreed
        return StepResult(
            step=queued.step,
            loss=loss_per_target(*losses.sum(0).tolist()),
            stream_losses={
                stream: loss_per_target(*row)
                for stream, row in zip(self.routed.streams, losses.tolist(), strict=True)
                if row[1]
            },
            group_targets=agreed.group_targets,
            corpus_counts=agreed.corpus_counts,
            world_size=self.agreement.world_size,
            grad_norms=read.norms,
            time=agreed.time,
            norms=self.accumulation.sampler.sample(
                queued.step, queued.passes, read.squares, agreed.group_targets
            ),
            asked=queued.needs.asked,
        )

    def _plan(self, batch: StepBatch, here: FirstFailure) -> list[Pass]:
        """This rank's passes; none if it has nothing to compute with."""
        routed = self.routed
        with here.noted():
            corpora = self.agreement.terms.corpora
            self._require_accepted(batch, routed.streams, corpora, routed.alternatives)
            return self.accumulation.planner.passes(batch.micro_batches)
        return []

    def _try(
        self, batch: StepBatch, passes: Sequence[Pass], loss_fn: LossFn, here: FirstFailure
    ) -> None:
        with here.noted():
            if self._watch:  # whatever failed here: shards may be gathered in its trial
                self._watch.look({each.adapter for each in passes if each.adapter})
        if self._try_rows and here.failure is None:
            with here.noted():
                self._try_rows(batch.micro_batches, batch.step, loss_fn)

    @contextmanager
    def _exchange(
        self, batch: StepBatch, passes: Sequence[Pass], fresh: FreshGradients, here: FirstFailure
    ) -> Iterator[Exchange]:
        """Begin the step's exchange; while it lasts, buckets that are complete leave at once."""
        try:
            targets = {} if here.failure else self.routed.targets(batch.micro_batches)
            needs = self.accumulation.padding.needs(passes, batch.asked)
            pending = self.agreement.start(
                batch.step, targets, batch.corpora, here.failure, needs.numbers
            )
            exchange = Exchange(self.agreement, pending, batch.step, self.routed, fresh)
            self._aggregator.begin(lambda: exchange.counts, exchange.meet)
            yield exchange
        finally:
            self._aggregator.end()

    @contextmanager
    def _owed(self, exchange: Exchange) -> Iterator[None]:
        """Ranks owe each other their gradients before it, and to be waited for in it, whatever
        happened. A rank that failed waits last: the others may meet it in the second status."""
        self._aggregator.send_rest()
        try:
            yield
        except BaseException:
            if self._aggregator.underway:
                self._over = (
                    f"step {exchange.step} failed inside {self._aggregator.host}, which keeps "
                    "what it had begun"
                )
            self._aggregator.sums()
            raise

    def _divide(self, exchange: Exchange) -> dict[str, Tensor]:
        """Put each sum over N_l into ``.grad``; the norm of each domain that moves."""
        divide(exchange.live, self._aggregator.sums(), exchange.counts)
        return self._clip.norms(exchange.live)

    def _reading(
        self, step: int, parts: Sequence[PartLoss], norms: Mapping[str, Tensor]
    ) -> Callable[[], StepReading]:
        """Queue all that the host has to know of this step; the result waits for the device."""
        squares = self.accumulation.sampler.squares(step)
        return StepReading.queued(self.routed.streams, parts, norms, squares)

    def _move(self, exchange: Exchange, norms: Mapping[str, Tensor]) -> None:
        """Clip and let the optimizer move the weights: on all ranks, or none goes on."""
        self._over = f"step {exchange.step} failed when the weights of some ranks may have moved"
        moved = FirstFailure()
        with moved.noted():
            stays = self._clip.stays(norms) if self._late else None
            self._clip.clip(norms)
            names = [name for name, count in exchange.counts.items() if count]
            trained = [self.routed.parameters[name] for name in names]
            with (
                optimizer_view(self.optimizer, trained, self.routed.adapter_ids, stays),
                self._watch.stepping(names) if self._watch else nullcontext(),
            ):
                self.optimizer.step()
        self.agreement.confirm(exchange.step, moved.failure)
        self._over = None


def build_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    groups: Mapping[str, Sequence[str]],
    routes: Mapping[str, Route],
    terms: Terms,
    settings: StepSettings,
    alternatives: Mapping[str, Collection[str]] = MappingProxyType({}),
    adapters: Adapters | None = None,
    layout: BucketLayout = bucket_layout,
    late: bool | None = None,
) -> GovernedStep:
    """A governed step with all that it works with. Collective.

    Args:
        model: Equal on all ranks. Its dropout modules are replaced by keyed ones.
        optimizer: Over exactly the parameters that may learn, adapters' included.
        groups: Layer group → FQNs, from ``layer_groups``.
        routes: Stream id → route, of every class that was admitted, alternatives included.
        terms: What the run's steps rest on: policy, plan, corpora, and how long each holds.
        settings: How a step computes.
        alternatives: Stream id → digests of the other routes that its rows may take: those of
            later phases, and of a gate's fallback.
        adapters: The model's adapters; None if no route has one.
        layout: How a domain's parameters are put into buckets.
        late: Whether steps are late where they can be; None: on a GPU. For tests.

    Raises:
        Refused: The model can't be routed exactly, a route does not fit it, a
            parameter escapes governance, or ranks hold different set-ups.
        UsageError: A number is out of range, the optimizer holds too little, or a parameter is
            shared otherwise than by FSDP2 over all ranks. Or passes are to be graphs, and the
            model is on no GPU.
    """
    refuse_inexact(model)
    refuse_other_meshes(model, sharded=settings.shards)
    if settings.activation_checkpointing:
        recompute_blocks(model)
    adapters = adapters or Adapters(model, {}, seed=settings.seed)
    refuse_undriven(optimizer)
    routed = route_model(
        model,
        optimizer,
        groups=groups,
        routes=routes,
        alternatives=alternatives,
        adapters=adapters,
        layout=layout,
    )
    keyed = key_dropout(model, settings.seed)
    timeout = timedelta(seconds=settings.collective_timeout_s)
    aggregator = _AGGREGATORS[settings.aggregator](model, routed.domains, layout, timeout=timeout)
    planner = Planner(
        routed.streams,
        groups,
        [domain.groups for domain in routed.domains],
        settings.max_rows,
        {name: parameter.numel() for name, parameter in trainable(model).items()},
        aggregator.hosted,
    )
    if settings.compile:
        compile_blocks(model, keyed)
        planner.unsliced = "its blocks are compiled"
    elif unknown := uncovered(model):
        planner.unsliced = f"no gradient by rows for {', '.join(unknown)}"
    forward = Forward(
        model,
        routed.parameters,
        adapters,
        keyed,
        zeros=aggregator.zeros,
        autocast=settings.autocast,
    )
    graphs = None
    if settings.cuda_graphs:
        graphs = PassGraphs(forward, model, routed.parameters, keyed, CudaCapture(model))
    agreement = Agreement(
        terms,
        groups=tuple(routed.groups),
        setup=routed.setup
        | {
            "aggregator": settings.aggregator,
            "clipNorm": settings.clip_norm,
            "normsEvery": settings.norms_every,
            "precision": settings.precision,
            "seed": settings.seed,
        },
        numbers=Needs.count(len(routed.domains)),
        timeout=timeout,
    )
    accumulation = Accumulation(
        routed,
        planner,
        forward,
        PassTrials(planner, forward, routed.streams, routed.parameters, tries=aggregator.tries),
        Padding(model, planner, aggregator, agreement),
        NormSampler(routed, agreement, settings.norms_every),
        aggregator,
        graphs,
        ShardedRowTrial(planner, forward, aggregator, settings.max_rows)
        if isinstance(aggregator, FSDP2)
        else None,
    )
    try_rows = StartupTrial(forward, model, routed.streams, settings.max_rows)
    if late is None:
        devices = {parameter.device for parameter in routed.parameters.values()}
        late = len(devices) == 1 and devices.pop().type == "cuda"
    # Where every stream may update everything, nothing is to be kept apart.
    watch = WeightWatch(optimizer, routed) if routed.keeps_apart else None
    return GovernedStep(
        routed,
        optimizer,
        accumulation=accumulation,
        aggregator=aggregator,
        agreement=agreement,
        clip=GradientClip(routed, aggregator, agreement, settings.clip_norm),
        watch=watch,
        try_rows=try_rows if aggregator.tries else None,
        late=late and can_stay(optimizer) and not settings.shards,
    )
