"""One worker's part of a run: loop over ``batches``, ``step`` and ``report``.

A run on a worker owns the order of things: what is read, in which order it is
stepped, when state is committed. The user's loop owns the model, the optimizer
and the loss. Every decision that could make ranks differ (which step resumes,
when to commit, when to stop) comes from the order or from an agreement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import ray.train
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from govray.data.prepared.ray_failures import lost_by_ray
from govray.engine.batch import AfterStep, StepBatch
from govray.engine.collective.agreement import Agreement
from govray.engine.gradients.forward import LossFn
from govray.engine.steps.expiry import NoLongerValid
from govray.engine.steps.step_result import StepResult
from govray.errors import GovrayError, InfrastructureFailed, Refused, UsageError
from govray.governance.record.entropy_profile import MonitorDecision
from govray.governance.record.incidents import Incidents
from govray.governance.record.ledger import AnyLeaf, GradientNorms, Leaf
from govray.storage.bucket import StoreFailed
from govray.storage.place import place
from govray.train.checkpoint.commit_folder import Folder
from govray.train.checkpoint.storage import shown_to_ray
from govray.train.experiment.sections import GROUP, Validation
from govray.train.inputs.gating import Gating
from govray.train.inputs.order import Assignment
from govray.train.inputs.revocation_feed import RevocationFeed
from govray.train.run_folder import requests
from govray.train.run_folder.clock import now
from govray.train.run_folder.events import EndedEarly
from govray.train.run_folder.figures import Figure
from govray.train.run_folder.loop_metrics import number
from govray.train.run_folder.requests import Requests
from govray.train.run_folder.run_lock import Fence
from govray.train.state.committer import Commits
from govray.train.state.resume_point import RolledBack
from govray.train.state.snapshot import TrainingState
from govray.train.state.weight_average import WeightAverage
from govray.train.validation.evaluation import Evaluation, Reduction, reduced
from govray.train.watching.metrics import RunMetrics, scalars, stream_labels
from govray.train.watching.profiler import StepProfiler
from govray.train.worker.memorization_watch import MemorizationWatch, Seen
from govray.train.worker.planned_batch import batches_on
from govray.train.worker.planned_shard import PlannedRows
from govray.train.worker.recorder import Recorder, gradient_norms, step_leaf
from govray.train.worker.run_terms import NOTHING_YET, best_so_far

REPORT_EVERY = 25
"""Steps between `ray.train.report` calls that carry no checkpoint: each costs a poll."""

COMMIT_LOSS = "commit_loss"
"""In a report that comes with a commit: the mean loss since the commit before, None if it is no
number."""

MAX_LOSS = 1e15
"""Canonical JSON has no numbers from 2^53 to 1e21, and nobody keeps such a model."""


class StepFunction(Protocol):
    """Does steps, on all ranks together: `GovernedStep`, or that of another framework.

    Attributes:
        agreement: Gathers what ranks say of a step besides.
    """

    agreement: Agreement

    def queue(
        self, batch: StepBatch, loss_fn: LossFn, *, now: bool = False
    ) -> Sequence[StepResult]:
        """As `GovernedStep`."""

    def confirm(self) -> StepResult | None:
        """As `GovernedStep`."""

    def leave_out(self, corpora: Mapping[str, str]) -> None:
        """As `GovernedStep`."""

    def reroute(self, corpora: Mapping[str, str]) -> None:
        """As `GovernedStep`."""

    def require_sound(self) -> None:
        """As `GovernedStep`."""


class StopRun(BaseException):
    """Ends the loop of a run before its last step, on all ranks, after a commit.

    The run was asked to stop, or ends early by the metric that it is judged by.

    Not an `Exception`, so that a user's ``except Exception`` cannot swallow it; what the loop would
    do after its last step is left out.

    Args:
        step: How many steps are done.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


class Run:
    """One worker's part of a governed run; made by `govern`.

    Args:
        assignment: The order, this rank's rows, and who is told of each step.
        step_function: Does a step, on all ranks together.
        state: What is committed.
        leaves: The ledger so far.
        sized: A module whose parameters have the model's names and sizes.
        told: What the monitor has decided so far, if the policy has one.
        watch: The monitor itself.
        feed: The revocation lists, on rank 0 of a run that follows them.
        schedule: Of the learning rate; stepped after each step.
        average: Of the weights, if the run keeps one; updated after each step.
        evaluation: The validation data, if there are any.
    """

    def __init__(
        self,
        assignment: Assignment,
        step_function: StepFunction,
        *,
        state: TrainingState,
        leaves: tuple[AnyLeaf, ...],
        sized: nn.Module,
        feed: RevocationFeed | None,
        told: Incidents | None = None,
        watch: MemorizationWatch | None = None,
        schedule: LRScheduler | None = None,
        average: WeightAverage | None = None,
        evaluation: Evaluation | None = None,
    ) -> None:
        order, rows = assignment.order, assignment.shard
        self.order = order
        self.step_function = step_function
        self._rows: PlannedRows = rows
        self._on_step = assignment.on_step
        self._on_report = assignment.on_report
        self._labels = stream_labels(order.plan) if assignment.on_report else {}
        self._device = assignment.device
        self._folder = place(order.folder)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        first = self._rank == 0
        self._requests = Requests(self._folder, order.experiment.checkpoint.every_minutes)
        decided = rows.decisions
        read = [corpus for corpus in order.plan.corpora if corpus not in order.plan.excluded]
        self._gating = Gating(
            order.on_expiry, order.expiries, read, decided, told, order.fallbacks, order.phased
        )
        fence = Fence(self._folder, order.driver, rows.attempt)
        self._commits = Commits(state, order, rows.start_step, fence)
        self._watch = watch
        self._recorder = Recorder(fence, leaves, len(decided.starts) - 1, writes=first)
        self._feed = feed
        self._schedule = schedule
        self._average = average
        self._run_metrics = RunMetrics(order, sized, writes=first)
        self._evaluation = evaluation
        judged = order.experiment.validation is not None
        self._best = best_so_far(rows.checkpoint) if judged else NOTHING_YET
        self._measured: Mapping[str, float] = {}  # of the validation data, when last measured
        profiled = order.experiment.profiled if first else range(0)
        self._profiler = StepProfiler(profiled, self._folder)
        self._last: StepResult | None = None
        self._metrics: Mapping[str, float] = {}  # of the last step
        self._losses: list[float] = []  # of the steps since the commit before
        self._memorization: float | None = None  # as last measured
        self._decisions: Sequence[MonitorDecision] = ()  # not recorded yet

    @property
    def start_step(self) -> int:
        """The first step that `batches` yields: 0, or where the run resumes."""
        return int(self._rows.start_step)

    def batches(self) -> Iterator[StepBatch]:
        """This rank's part of every remaining step, in plan order.

        A rank that can't read its part still yields a batch, which carries the
        reason: all ranks then stop together in `step`.
        """
        if self._best.ended or self.start_step == self.order.stop:
            # An earlier attempt ended between its last commit and telling Ray of it.
            self._report({}, self._rows.checkpoint)
        if self._best.ended:
            raise StopRun(self.start_step)
        batches = batches_on(self._device, self._rows.steps(), self.order.manifest.rows)
        for step in self._profiler.over(range(self.start_step, self.order.stop)):
            try:
                with self._run_metrics.waiting("data"):
                    batch = next(batches)
                listed = self._feed.trouble if self._feed else None
                if trouble := self._recorder.trouble or self._commits.failure or listed:
                    raise trouble
                if batch.step != step:
                    raise Refused(f"the shard holds step {batch.step} where {step} is due")
                batch = batch.without(self._gating.left_out(step))
                if self._rank == 0:
                    batch = replace(
                        batch, asked=self._requests.look(may_commit=self._rated(step + 1))
                    )
            except Exception as error:  # whatever it is, the other ranks must hear of it
                batch = StepBatch(
                    step=step,
                    micro_batches=(),
                    corpora={},
                    error=_describe(error),
                    refused=isinstance(error, Refused),
                    unreachable=isinstance(error, InfrastructureFailed | StoreFailed)
                    or lost_by_ray(error),
                )
            yield batch

    def step(self, batch: StepBatch, loss_fn: LossFn) -> dict[str, float]:
        """Forward, backward, governed all-reduce and optimizer step, on all ranks together.

        Args:
            batch: From `batches`.
            loss_fn: ``(model, tensors) -> (rows, tokens)`` losses, unreduced.

        Returns:
            ``step``, ``loss`` (mean over all loss targets, NaN if the step has none), ``targets``,
            ``rows``, and ``seconds``; after a step that is measured also ``memorization``,
            the log of the largest odds ratio that is sure (``e_process.effect``). After a step that
            is validated, ``validation/loss`` and the other metrics of the validation data.

        Raises:
            RolledBack: The policy's monitor asks for a rollback; the run goes on elsewhere.
        """
        began = time.perf_counter()
        *before, result = self._governed(batch, loss_fn, now=True)
        for each in before:
            self.report(self._done(each, began, loss_fn))
        return self._done(result, began, loss_fn)

    def advance(self, batch: StepBatch, loss_fn: LossFn) -> None:
        """`step` and `report`, for a loop without metrics of its own.

        On a GPU a step is recorded and reported while the next one computes, so that the device
        does not wait for the host. A step is waited for before a commit, a validation, a
        measurement, the ends of a profile, a gate, a pause and the end. An error that the device
        finds comes one step late; nothing of either step is recorded.

        Raises:
            GovrayError: As `step` and `report`.
        """
        began = time.perf_counter()
        for result in self._governed(batch, loss_fn, now=self._waited_for(batch.step)):
            self.report(self._done(result, began, loss_fn))

    def _waited_for(self, step: int) -> bool:
        """Whether something follows a step that is of its weights."""
        done, profiled = step + 1, self.order.experiment.profiled
        return (
            self._planned_commit(done)
            or self._judged(done) is not None
            or (self._watch is not None and self._watch.due(step))
            or (bool(profiled) and done in (profiled.start, profiled.stop))
        )

    def _planned_commit(self, done: int) -> bool:
        """Whether a checkpoint is due when so many steps are done, whatever happens."""
        every, at = self.order.experiment.commit_steps, self.order.commit_at
        return done == self.order.stop or (every and done % every == 0) or done in at

    def _rated(self, done: int) -> bool:
        """Whether a commit when so many steps are done has a metric, if the run is judged."""
        return self.order.experiment.validation is None or self._judged(done) is not None

    def _done(self, result: StepResult, began: float, loss_fn: LossFn) -> dict[str, float]:
        """Record a step that is confirmed; its metrics. Collective, if it is measured."""
        self._decided(last=False)  # of a step that the loop did not report
        self._last = result
        leaf = self._leaf(result)
        self._recorder.step(leaf, self._norms(leaf, result))
        metrics = {
            "step": float(result.step),
            "loss": float(result.loss),
            "rows": float(sum(rows for rows, _ in result.corpus_counts.values())),
            "targets": float(sum(targets for _, targets in result.corpus_counts.values())),
            "seconds": time.perf_counter() - began,
        }
        self._run_metrics.stepped(
            result, metrics["seconds"], agreed=self.step_function.agreement.waited, lag=self._lag
        )
        if self._watch and (seen := self._measure(self._watch, leaf, loss_fn)):
            self._memorization = metrics["memorization"] = seen.memorization
        if self._evaluation and self._judged(result.step + 1):
            metrics |= self._validate(self._evaluation, result.step, loss_fn)
        said = metrics
        if metrics["targets"]:
            self._losses.append(metrics["loss"])
        else:  # as of conversations without an answer
            said = {name: value for name, value in metrics.items() if name != "loss"}
        self._metrics = metrics
        if self._rank == 0:
            self._on_step(result.step, said)
        return metrics

    def _judged(self, done: int) -> Validation | None:
        """What the run is judged by, if it is judged when so many steps are done."""
        judged = self.order.experiment.validation
        if judged is None:
            return None
        planned = done == self.order.stop or done in self.order.commit_at
        return judged if planned or not done % judged.every_steps else None

    def _validate(self, evaluation: Evaluation, step: int, loss_fn: LossFn) -> Mapping[str, float]:
        """The metrics of the validation data after a step. Collective."""
        found = evaluation.measure(step, loss_fn)
        self._recorder.validated(step, found)
        self._measured = {f"{GROUP}/{name}": value for name, value in found.items()}
        return self._measured

    def _measure(self, watch: MemorizationWatch, leaf: Leaf, loss_fn: LossFn) -> Seen | None:
        """What is due after a step, and what follows. Collective."""
        without = self._gating.first_without(leaf.step)
        seen = watch.after(leaf, without.get, loss_fn)
        if seen is None:
            return None
        self._recorder.measured(seen.profile)
        self._run_metrics.measured(seen.profile)
        self._decisions = seen.decisions
        if watch.told.pending is not None:
            self._decided(last=False)
            self._commits.settle(self._trouble)
            raise RolledBack(
                f"rolled back after step {leaf.step}, to step {watch.told.pending} or before",
                where=f"run {self.order.run_id}",
            )
        return seen

    def _decided(self, *, last: bool) -> None:
        """Record what follows from the newest profile, once it is known whether a step comes."""
        self._recorder.decided(self._decisions, last=last)
        self._decisions = ()

    def _governed(self, batch: StepBatch, loss_fn: LossFn, *, now: bool) -> Sequence[StepResult]:
        """One step, without the corpora whose credentials ended by its agreed time. Rows take the
        route of their phase, and those that a gate sent elsewhere their fallback's.
        Returns what is confirmed behind it, as `GovernedStep.queue`."""
        while True:
            left_out = self._gating.left_out(batch.step)
            rerouted = self._gating.rerouted(batch.step)
            self.step_function.leave_out(left_out)
            self.step_function.reroute(rerouted)
            try:
                confirmed = self.step_function.queue(
                    batch.without(left_out).rerouted(rerouted), loss_fn, now=now
                )
                if self._schedule:
                    self._schedule.step()
                if self._average:
                    self._average.update(batch.step)
                return confirmed
            except NoLongerValid as error:
                if (before := self.step_function.confirm()) is not None:
                    self.report(self._done(before, time.perf_counter(), loss_fn))
                # Each time at least one corpus more, or the run stops.
                lists = self._feed.lists() if self._feed else {}
                gates = self._gating.gate(batch.step, error, lists)
            self._recorder.gated(gates)
            if trouble := self._recorder.trouble:
                batch = replace(
                    batch, error=_describe(trouble), refused=isinstance(trouble, Refused)
                )

    def report(
        self,
        metrics: Mapping[str, float | Figure],
        *,
        reduce: Mapping[str, Reduction] | None = None,
    ) -> None:
        """Hand metrics to Ray Train, and commit a checkpoint when one is due.

        Metrics beyond those of `step` are kept with the run, in groups: ``validation/loss`` is
        the loss of the group ``validation``. Of numbers that differ between ranks, rank 0's is
        kept, unless ``reduce`` names a reduction.

        A figure (`govray.train.ConfusionMatrix`, `Histogram`, `ResultTable`, `PngImage`) is kept
        in the run's folder, and the service draws it. Ray does not get it.

        Args:
            metrics: By name. A scalar of NumPy, torch or JAX is a number too.
            reduce: Metric → ``mean``, ``sum``, ``min``, ``max`` (over ranks) or ``last`` (rank
                0's). Each rank must name the same ones, and report these metrics.

        Waits for the copy to host memory only; after the last step, and before the workers
        are exchanged for more, for the commit.

        Raises:
            GovrayError: A commit failed; every rank raises it. One that fails in
                the middle of a run shows in the next `step`.
            StopRun: The run was asked to stop, or ends early, and this commit was its last.
            Refused: On all ranks: one of them does not report what is to be reduced, or what the
                run is judged by.
            RankFailed: An earlier step failed, and its weights may differ between ranks.
        """
        self.step_function.require_sound()
        if self._last is None:
            raise UsageError("report() was called before step()")
        done = self._last.step + 1
        section = self._judged(done)
        own: dict[str, Any] = {
            name: each if (plain := number(each)) is None else plain
            for name, each in metrics.items()
            if not isinstance(each, Figure)
        }
        numbers = self._reduced(own, reduce or {}, section)
        counted = self._metrics.keys() - ({"loss"} if self._metrics["targets"] else set())
        self._recorder.reported(self._last.step, {**metrics, **numbers}, counted)
        if self._on_report and self._rank == 0:
            self._on_report(*scalars(self._last, self._metrics, numbers, self._labels))
        if section is not None:
            self._judge(section, done, numbers)
        finished = done == self.order.stop or self._best.ended
        self._decided(last=finished)
        last = finished or self._last.asked is AfterStep.STOP
        pause = self._last.asked is AfterStep.PAUSE and not last
        due = last or bool(self._last.asked) or self._planned_commit(done)
        said: Mapping[str, Any] = numbers
        if due:
            self._recorder.flush()
            # What was measured since the commit before would else never be reported.
            seen = {} if self._memorization is None else {"memorization": self._memorization}
            seen |= {"step": float(self._last.step), **self._measured}
            said = {**seen, **numbers, COMMIT_LOSS: self._commit(done)}
        if last or pause:
            with self._run_metrics.waiting("commit"):
                newest = self._commits.settle(self._trouble)
        if due:
            self._run_metrics.committing(self._last, self._lag)
        if last:
            # A stopped run goes on, and retention will delete this commit in its time.
            self._report(said, newest if finished else None)
        elif due or done % REPORT_EVERY == 0:
            self._report(said, None)
        if last and done < self.order.stop:
            raise StopRun(done)
        if pause:
            if self._rank == 0:
                requests.answer(self._folder)
            time.sleep(requests.WAIT_S)  # a worker that is not ended goes on with the run

    def _reduced(
        self,
        metrics: Mapping[str, float],
        by: Mapping[str, Reduction],
        section: Validation | None,
    ) -> Mapping[str, float]:
        """The metrics, with those of ``by`` over all ranks; what the run is judged by is among
        them. Collective, if there are any."""
        if section is not None and section.metric_name not in self._measured:
            by = {section.metric_name: "last", **by}
        if not by:
            return metrics
        where = "report()" if section is None else f"report(), validation.metric {section.metric}"
        agreement = self.step_function.agreement
        known = {**self._metrics, **metrics}
        return {**metrics, **reduced(agreement, known, by, where=where)}

    def _judge(self, section: Validation, done: int, metrics: Mapping[str, float]) -> None:
        """Take the value that all ranks have of the metric, and see whether to end early."""
        name = section.metric_name
        value = {**metrics, **self._measured}[name]
        self._best = self._best.after(done, value, section)
        if self._best.ended and done < self.order.stop:
            self._recorder.ended_early(
                EndedEarly(
                    at=now(),
                    step=done,
                    metric=name,
                    best=self._best.best,
                    best_step=self._best.best_step,
                    validations=self._best.waited,
                )
            )

    def _commit(self, done: int) -> float | None:
        """Begin the commit of the state after which step ``done`` is next.

        Returns the mean loss of the steps since the commit before.
        """
        loss = mean_loss(self._losses)
        self._losses.clear()
        self._requests.committed()
        with self._run_metrics.waiting("commit"):
            self._commits.begin(
                done,
                self._recorder.leaves,
                self._gating.gates(done),
                loss=loss,
                stopping=self._trouble is not None,
                floor=self._watch.told.floor if self._watch else None,
                validation=self._best.to_json() if self.order.experiment.validation else None,
            )
        return loss

    def _report(self, metrics: Mapping[str, float], final: Folder | None) -> None:
        """Report only the last commit to Ray. Ray refuses to go on with a run if a checkpoint that
        it knows was deleted, and older commits may be."""
        shown = None
        if final and self._rank == 0:
            shown = ray.train.Checkpoint(str(shown_to_ray(self._folder, final)))
        ray.train.report(
            dict(metrics),
            checkpoint=shown,
            checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD,
        )

    @property
    def _lag(self) -> int:
        """Steps done that no whole commit has, as rank 0 knows."""
        return 0 if self._last is None else self._last.step + 1 - self._commits.whole

    @property
    def _trouble(self) -> str | None:
        """Why the record can't be kept, in words; rank 0 knows."""
        return _describe(self._recorder.trouble) if self._recorder.trouble else None

    def _norms(self, leaf: Leaf, result: StepResult) -> GradientNorms | None:
        if result.norms is None:
            return None
        return gradient_norms(leaf, result.norms.pieces, result.norms.squares, self.order.routes)

    def _leaf(self, result: StepResult) -> Leaf:
        return step_leaf(
            result,
            self.order.plan,
            policy=self.order.policy_digest,
            branch=self._gating.branch(result.step),
            rerouted=self._gating.rerouted(result.step),
        )


def mean_loss(losses: Sequence[float]) -> float | None:
    """What ``save_trial_best`` compares; None if there is no loss, or none that is a number."""
    mean = math.fsum(losses) / len(losses) if losses else math.nan
    return mean if abs(mean) < MAX_LOSS else None


def _describe(error: Exception) -> str:
    if isinstance(error, GovrayError):
        return str(error)
    return f"{type(error).__name__}: {error}"
