"""The worker's side: `govern` a model, then loop over ``batches``, ``step`` and ``report``.

A run on a worker owns the order of things: what is read, in which order it is
stepped, when state is committed. The user's loop owns the model, the optimizer
and the loss. Every decision that could make ranks differ (which step resumes,
when to commit, when to stop) comes from the order or from an agreement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.checkpoint.commit_folder import Folder
from govray.checkpoint.storage import shown_to_ray
from govray.checkpoint.tensor_shards import is_sharded
from govray.data.step_reader import StepRows
from govray.engine.batch import IGNORED, MicroBatch, StepBatch
from govray.engine.collective.expiry import Lapsed
from govray.engine.memorization.monitor import Monitor, logits_in
from govray.engine.model.adapters import Adapters
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import GovernedStep, StepResult
from govray.errors import GovrayError, Refused, UsageError
from govray.governance.record.ledger import CorpusUse, GradientNorms, Leaf
from govray.train.inputs.gating import Gating
from govray.train.inputs.order import Assignment, Discovery, current
from govray.train.inputs.pretrained import load_start
from govray.train.inputs.revocation_feed import RevocationFeed
from govray.train.run_folder import resize_request, stop_request
from govray.train.run_folder.clock import instant, now
from govray.train.run_folder.events import Gated, Memorized, append
from govray.train.run_folder.ledger_wal import FILE, WriteAhead
from govray.train.run_folder.loop_metrics import MetricLog
from govray.train.run_folder.run_lock import Fence
from govray.train.state.committer import Commits
from govray.train.state.resume_point import RolledBack
from govray.train.state.snapshot import TrainingState
from govray.train.worker.ledger_norms import gradient_norms
from govray.train.worker.lr_schedule import (
    MakeScheduler,
    learning_rates,
    make_schedule,
    require_rates,
)
from govray.train.worker.memorization_watch import MemorizationWatch, Scorer, Seen
from govray.train.worker.planned_shard import PlannedRows

REPORT_EVERY = 25
"""Steps between `ray.train.report` calls that carry no checkpoint: each costs a poll."""

COMMIT_LOSS = "commit_loss"
"""In a report that comes with a commit: the mean loss since the commit before, None if it is no
number."""

MAX_LOSS = 1e15
"""Canonical JSON has no numbers from 2^53 to 1e21, and nobody keeps such a model."""

LossFn = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]


class Discovered(BaseException):
    """Ends a discovery: carries the model that reached `govern`, and its layer groups.

    Not an `Exception`, so that a user's ``except Exception`` cannot swallow it.
    """

    def __init__(self, groups: Mapping[str, tuple[str, ...]], model: nn.Module) -> None:
        super().__init__("the model is known")
        self.groups = dict(groups)
        self.model = model


class StopRun(BaseException):
    """Ends the loop of a run that was asked to stop, on all ranks, after a commit.

    Not an `Exception`, as `Discovered`; what the loop would do after its last step is left out.

    Args:
        step: Where the run resumes.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


def govern(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: MakeScheduler | None = None,
    scorer: Scorer | None = None,
) -> Run:
    """Put a model and its optimizer under the run's depth policy.

    Replaces ``ray.train.torch.prepare_model``. Attaches the policy's adapters,
    adds their parameters to the optimizer, and restores the latest commit.

    Args:
        model: Any module whose parameters fall into layer groups.
        optimizer: Over the model's parameters.
        scheduler: ``optimizer -> scheduler``: makes torch's learning-rate scheduler once the
            adapters have joined the optimizer. `Run.step` steps it.
        scorer: What measures memorization, if the policy asks for it; the engine's own monitor
            by default.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started.
        Refused: The model is not the one the plan was made for, or can't be
            routed exactly.
    """
    return Run(model, optimizer, assignment_for(model), scheduler, scorer)


def assignment_for(model: nn.Module) -> Assignment:
    """The assignment in force; on the driver, the end of a discovery.

    `govern` begins with it. A host framework's adapter calls it earlier, as soon
    as it knows the model: what it builds around a model need not work on the
    meta device.

    Raises:
        UsageError: Called outside a training loop that `GovernedTrainer` started.
        Discovered: The driver asked only which layer groups the model has.
    """
    assignment = current.get()
    if assignment is None:
        raise UsageError(
            "govern() was called outside a governed training loop",
            do="Pass the loop to GovernedTrainer(train_loop_per_worker=...)",
        )
    if isinstance(assignment, Discovery):
        raise Discovered(layer_groups(model, assignment.policy_groups), model)
    return assignment


class Run:
    """One worker's part of a governed run; made by `govern`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        assignment: Assignment,
        scheduler: MakeScheduler | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        order = assignment.order
        found = layer_groups(model, order.policy_groups)
        if found != order.groups:
            differing = sorted(
                name
                for name in {**found, **order.groups}
                if found.get(name) != order.groups.get(name)
            )
            raise Refused(
                f"the model's layer groups changed since the plan was made: {', '.join(differing)}",
                where="govern()",
                do="Build the same model on every worker and on every call of the loop",
            )
        self.order = order
        if not any(model is each for each in assignment.sharded):
            begin_with(model, assignment)
        self._on_step = assignment.on_step
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._device = next(model.parameters()).device
        self._rows: PlannedRows = assignment.shard
        adapters = Adapters(
            model,
            {r.adapter: r.rank for r in order.routes.values() if r.adapter and r.rank},
            seed=order.seed,
        )
        self._adapters = adapters
        parameters = dict(adapters.named_parameters())
        for names in adapters.groups.values():
            optimizer.add_param_group({"params": [parameters[name] for name in names]})
        decided = self._rows.decisions
        read = [corpus for corpus in order.plan.corpora if corpus not in order.plan.excluded]
        told = None
        if order.monitored:
            told = order.monitored.story(decided.profiles, decided.starts)
        self._gating = Gating(order.on_expiry, order.expiries, read, decided, told)
        self._feed: RevocationFeed | None = None
        if order.revocations and self._rank == 0:
            self._feed = RevocationFeed(order.revocations, Path(order.folder), at=instant())
            self._feed.start()
        self.step_function = GovernedStep(
            model,
            optimizer,
            groups=order.groups,
            routes=order.routes,
            adapters=adapters,
            seed=order.seed,
            policy_digest=order.policy_digest,
            plan_digest=order.plan.digest,
            corpora=sorted({c.corpus for s in order.plan.streams for c in s.corpora}),
            clip_norm=order.clip_norm,
            max_rows=order.max_rows,
            aggregator=order.aggregator,
            clock=time.time,
            valid_until=order.expiries,
            revoked=self._feed.since if self._feed else dict,
            decided=decided.until,
            collective_timeout=timedelta(seconds=order.collective_timeout_s),
        )
        self._scheduler = scheduler and make_schedule(scheduler, optimizer, self.start_step)
        scheduled = learning_rates(optimizer)
        state = TrainingState(model, optimizer, adapters)
        leaves = state.restore(self._rows.checkpoint, order) if self._rows.checkpoint else ()
        if self._scheduler:
            require_rates(optimizer, scheduled, self.start_step)
        self._fence = Fence(Path(order.folder), order.driver, self._rows.attempt)
        self._commits = Commits(state, order, self.start_step, self._fence)
        self._watch: MemorizationWatch | None = None
        if told:
            self._watch = MemorizationWatch(
                order, told, decided.profiles, leaves, device=self._device
            )
        self._scorer = scorer
        self._last: StepResult | None = None
        self._metrics: Mapping[str, float] = {}  # of the last step
        self._metric_log = MetricLog(Path(order.folder), self._rows.attempt)
        self._losses: list[float] = []  # of the steps since the commit before
        self._memorization: float | None = None  # as last measured
        # Only rank 0 keeps the record. What goes wrong there is carried into the next
        # agreement, so that all ranks stop together.
        self._trouble: GovrayError | OSError | None = None
        self._ahead: WriteAhead | None = None
        if self._rank == 0:
            with self._noting_trouble():
                branch = len(decided.starts) - 1
                self._ahead = WriteAhead(Path(order.folder) / FILE, leaves, branch)

    @property
    def start_step(self) -> int:
        """The first step that `batches` yields: 0, or where the run resumes."""
        return int(self._rows.start_step)

    def batches(self) -> Iterator[StepBatch]:
        """This rank's part of every remaining step, in plan order.

        A rank that can't read its part still yields a batch, which carries the
        reason: all ranks then stop together in `step`.
        """
        if self.start_step == self.order.stop:
            # An earlier attempt ended between its last commit and telling Ray of it.
            self._report({}, self._rows.checkpoint)
        rows = iter(self._rows)
        for step in range(self.start_step, self.order.stop):
            try:
                planned = next(rows)
                listed = self._feed.trouble if self._feed else None
                if trouble := self._trouble or self._commits.failure or listed:
                    raise trouble
                if planned.step != step:
                    raise Refused(f"the shard holds step {planned.step} where {step} is due")
                batch = step_batch(planned, self._device)
                batch = batch.without(self._gating.left_out(step))
            except Exception as error:  # whatever it is, the other ranks must hear of it
                batch = StepBatch(
                    step=step,
                    micro_batches=(),
                    corpora={},
                    error=_describe(error),
                    refused=isinstance(error, Refused),
                )
            if self._rank == 0:
                folder = Path(self.order.folder)
                batch = replace(
                    batch, stop=stop_request.requested(folder), pause=resize_request.asked(folder)
                )
            yield batch

    def step(self, batch: StepBatch, loss_fn: LossFn) -> dict[str, float]:
        """Forward, backward, governed all-reduce and optimizer step, on all ranks together.

        Args:
            batch: From `batches`.
            loss_fn: ``(model, tensors) -> (rows, tokens)`` losses, unreduced.

        Returns:
            ``step``, ``loss`` (mean over all loss targets), ``targets``,
            ``rows``, and ``seconds``; after a step that is measured also ``memorization``,
            the largest deviation of any corpus and layer, in robust units.

        Raises:
            RolledBack: The policy's monitor asks for a rollback; the run goes on elsewhere.
        """
        began = time.perf_counter()
        result = self._governed(batch, loss_fn)
        self._last = result
        if self._scheduler:
            self._scheduler.step()
        if self._ahead:
            with self._noting_trouble():
                self._fence.check()
                leaf = self._leaf(result)
                self._ahead.append(leaf, self._norms(leaf, result))
        metrics = {
            "step": float(result.step),
            "loss": float(result.loss),
            "rows": float(sum(rows for rows, _ in result.corpus_counts.values())),
            "targets": float(sum(targets for _, targets in result.corpus_counts.values())),
            "seconds": time.perf_counter() - began,
        }
        if self._watch and (seen := self._measure(result, loss_fn)):
            self._memorization = metrics["memorization"] = seen.memorization
        self._losses.append(metrics["loss"])
        self._metrics = metrics
        if self._rank == 0:
            self._on_step(result.step, metrics)
        return metrics

    def _measure(self, result: StepResult, loss_fn: LossFn) -> Seen | None:
        """What is due after a step, and what follows. Collective."""
        assert self._watch is not None
        without = self._gating.first_without(result.step)
        seen = self._watch.after(
            self._leaf(result), without.get, partial(self._make_scorer, loss_fn)
        )
        if seen is None:
            return None
        if self._ahead:
            with self._noting_trouble():
                self._ahead.note(seen.profile)
                for decision in seen.decisions:
                    append(Path(self.order.folder), Memorized(at=now(), decision=decision))
        if self._watch.told.pending is not None:
            self._commits.settle(_describe(self._trouble) if self._trouble else None)
            raise RolledBack(
                f"rolled back after step {result.step}, to step {self._watch.told.pending} or "
                "before",
                where=f"run {self.order.run_id}",
            )
        return seen

    def _make_scorer(self, loss_fn: LossFn) -> Scorer:
        if self._scorer is None:
            self._scorer = Monitor(
                self.step_function.model,
                self._adapters,
                self.step_function.agreement,
                logits=logits_in(loss_fn),
                seed=self.order.seed,
            )
        return self._scorer

    def _governed(self, batch: StepBatch, loss_fn: LossFn) -> StepResult:
        """One step, without the corpora whose credentials ended by its agreed time."""
        while True:
            left_out = self._gating.left_out(batch.step)
            self.step_function.leave_out(left_out)
            try:
                return self.step_function(batch.without(left_out), loss_fn)
            except Lapsed as lapsed:
                # Each time at least one corpus more, or the run stops.
                lists = self._feed.lists() if self._feed else {}
                gates = self._gating.gate(batch.step, lapsed, lists)
            if self._rank == 0:
                with self._noting_trouble():
                    for gate in gates:
                        assert gate.time is not None  # the agreement's
                        append(Path(self.order.folder), Gated(at=gate.time, gate=gate))
                if self._trouble:
                    batch = replace(
                        batch,
                        error=_describe(self._trouble),
                        refused=isinstance(self._trouble, Refused),
                    )

    def report(self, metrics: Mapping[str, float]) -> None:
        """Hand metrics to Ray Train, and commit a checkpoint when one is due.

        Metrics beyond those of `step` are kept with the run, in groups: ``validation/loss`` is
        the loss of the group ``validation``.

        Waits for the copy to host memory only; after the last step, and before the workers
        are exchanged for more, for the commit.

        Raises:
            GovrayError: A commit failed; every rank raises it. One that fails in
                the middle of a run shows in the next `step`.
            StopRun: The run was asked to stop, and this commit was its last.
            RankFailed: An earlier step failed, and its weights may differ between ranks.
        """
        self.step_function.require_sound()
        if self._last is None:
            raise UsageError("report() was called before step()")
        if self._rank == 0:
            self._metric_log.note(self._last.step, metrics, self._metrics)
        done = self._last.step + 1
        last = done == self.order.stop or self._last.stop
        pause = self._last.pause and not last
        every, at = self.order.checkpoint_every, self.order.commit_at
        due = last or pause or done % every == 0 or done in at
        if due:
            # What was measured since the commit before would else never be reported.
            seen = {} if self._memorization is None else {"memorization": self._memorization}
            said: Mapping[str, Any] = {**seen, **metrics, COMMIT_LOSS: self._commit(done)}
            metrics = said
        if last or pause:
            trouble = _describe(self._trouble) if self._trouble else None
            newest = self._commits.settle(trouble)
        if last:
            # A stopped run goes on, and retention will delete this commit in its time.
            self._report(metrics, newest if done == self.order.stop else None)
        elif due or done % REPORT_EVERY == 0:
            self._report(metrics, None)
        if last and done < self.order.stop:
            raise StopRun(done)
        if pause:
            if self._rank == 0:
                resize_request.answer(Path(self.order.folder))
            resize_request.wait()

    def _commit(self, done: int) -> float | None:
        """Begin the commit of the state after which step ``done`` is next.

        Returns the mean loss of the steps since the commit before.
        """
        leaves = self._ahead.leaves if self._ahead else []
        loss = mean_loss(self._losses)
        self._losses.clear()
        gates = self._gating.gates(done)
        self._commits.begin(
            done,
            leaves,
            gates,
            loss=loss,
            stopping=self._trouble is not None,
            floor=self._watch.told.floor if self._watch else None,
        )
        return loss

    def _report(self, metrics: Mapping[str, float], final: Folder | None) -> None:
        """Ray hears of the last commit only: it refuses to go on with a run of which a
        checkpoint that it knows was deleted, and the others may be."""
        shown = None
        if final and self._rank == 0:
            shown = ray.train.Checkpoint(str(shown_to_ray(Path(self.order.folder), final)))
        ray.train.report(
            dict(metrics),
            checkpoint=shown,
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD,
        )

    @contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        try:
            yield
        except (GovrayError, OSError) as error:
            self._trouble = self._trouble or error

    def _norms(self, leaf: Leaf, result: StepResult) -> GradientNorms | None:
        if result.norms is None:
            return None
        return gradient_norms(leaf, result.norms.pieces, result.norms.squares, self.order.routes)

    def _leaf(self, result: StepResult) -> Leaf:
        return Leaf(
            branch=self._gating.branch(result.step),
            step=result.step,
            world_size=result.world_size,
            policy=self.order.policy_digest,
            plan=self.order.plan.digest,
            streams={
                stream: (span.start, span.stop)
                for stream, span in self.order.plan.positions(result.step).items()
            },
            corpora={
                corpus: CorpusUse(rows=rows, targets=targets)
                for corpus, (rows, targets) in result.corpus_counts.items()
                if rows
            },
        )


def begin_with(model: nn.Module, assignment: Assignment) -> None:
    """Put the weights that the run begins with into a model, on every rank. Collective.

    Raises:
        UsageError: The model is sharded, and may begin elsewhere than the run says.
        GovrayError: The recorded start can't be loaded.
    """
    if is_sharded(model):
        raise UsageError(
            "the model was sharded before it had the weights that the run begins with",
            where=type(model).__name__,
            do="Call govray.train.shard(model) instead of fully_shard",
        )
    if assignment.order.start and not assignment.shard.checkpoint:
        load_start(model, assignment.order.start)
    _broadcast_weights(model)


@torch.no_grad()
def _broadcast_weights(model: nn.Module) -> None:
    """Give every rank rank 0's weights and buffers, as DDP does when it wraps a model."""
    if dist.is_initialized():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, src=0)


def step_batch(rows: StepRows, device: torch.device | str = "cpu") -> StepBatch:
    """One rank's rows as micro-batches, one for each stream, on the model's device.

    Within a stream, rows of one corpus stand together, for that is a piece whose
    gradient norm is sampled; else they keep the plan's order. A row of k tokens gives
    inputs 0 … k-2 and targets 1 … k-1; what lies beyond a short row is padded with
    token 0 and the target that counts for nothing.
    """
    tokens = torch.from_numpy(rows.tokens.astype(np.int64))
    lengths = torch.from_numpy(rows.lengths)
    targets = tokens[:, 1:].clone()
    beyond = torch.arange(targets.shape[1]) >= (lengths - 1).unsqueeze(1)
    targets[beyond] = IGNORED
    micro_batches = []
    for stream in dict.fromkeys(rows.streams):
        own = [i for i, name in enumerate(rows.streams) if name == stream]
        own.sort(key=rows.corpora.__getitem__)
        micro_batches.append(
            MicroBatch(
                stream=stream,
                tensors={
                    "tokens": tokens[own, :-1].to(device),
                    "targets": targets[own].to(device),
                },
                positions=tuple(int(rows.positions[i]) for i in own),
                row_targets=tuple(int(rows.lengths[i]) - 1 for i in own),
                corpora=tuple(rows.corpora[i] for i in own),
            )
        )
    corpora: dict[str, tuple[int, int]] = {}
    for corpus, length in zip(rows.corpora, rows.lengths.tolist(), strict=True):
        count, held = corpora.get(corpus, (0, 0))
        corpora[corpus] = (count + 1, held + length - 1)
    return StepBatch(
        step=rows.step,
        micro_batches=tuple(micro_batches),
        corpora=corpora,
        error=rows.error,
        refused=rows.error is not None,  # what a reader reports is a shard that changed or is gone
    )


def mean_loss(losses: Sequence[float]) -> float | None:
    """What ``save_trial_best`` compares; None if there is no loss, or none that is a number."""
    mean = math.fsum(losses) / len(losses) if losses else math.nan
    return mean if abs(mean) < MAX_LOSS else None


def _describe(error: Exception) -> str:
    if isinstance(error, GovrayError):
        return str(error)
    return f"{type(error).__name__}: {error}"
