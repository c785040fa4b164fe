"""A run's attempts: Ray Train starts groups of workers, and this decides what follows each end.

Ray's own limits are lifted. Ray's controller calls `Supervisor` with the workers' errors. It asks
`govray.train.driver.failures`, and ends the run by raising or lets Ray restart. The controller
itself may die; then `fit` starts another, under the same bound. Its memory is the run's event log,
so decisions don't depend on which process has lived how long.

Invariants:

* A refused rank raises, and its process stays until Ray ends it. So no other rank dies of its
  absence first and is taken for the cause.
* The driver's main thread never blocks in Ray, so that signals are heard.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.util.placement_group import get_current_placement_group, remove_placement_group

from govray.engine.model.rng_state import seed_generators
from govray.errors import GovrayError
from govray.files.place import Place, place
from govray.train.driver import failures, kept_output
from govray.train.driver.gpu_request import backends
from govray.train.driver.progress import ProgressWatch, StepCallback
from govray.train.driver.scaling_policy import ScaledTrainer
from govray.train.inputs import operator_key
from govray.train.inputs.order import Assignment, Order, current
from govray.train.loop.until_govern import Loop
from govray.train.run_folder import events, run_lock, stop_request
from govray.train.run_folder.clock import now
from govray.train.run_folder.ledger_wal import recorded_steps
from govray.train.state.resume_point import RolledBack
from govray.train.worker import planned_shard
from govray.train.worker.run import StopRun

PROGRESS_S = 10.0
"""Seconds between two progress events, at least."""

_POLL_S = 0.1


def fit(
    order: Order,
    loop: Loop,
    *,
    config: Mapping[str, Any] | None,
    scaling: ray.train.ScalingConfig | None,
    run_config: ray.train.RunConfig,
    on_step: StepCallback,
    on_report: StepCallback | None = None,
) -> int:
    """Train until the last step is committed or the run was asked to stop.

    Args:
        order: The run's; this process holds it (`run_lock.hold`) as driver ``order.driver``.
        loop: The user's, with ``config`` as its argument.
        scaling, run_config: For Ray Train. Of the failure configuration ``max_failures`` is
            taken: how many failures of the user's own may be followed by a restart.
        on_step: Called as steps are done.
        on_report: Called with every step that was reported.

    Returns:
        The first step that was not done: ``order.stop`` if the run is finished.

    Raises:
        GovrayError: What was refused, or which rank failed and why.
        KeyboardInterrupt: The second signal to stop.
    """
    folder = place(order.folder)
    failing = run_config.failure_config
    assert failing is not None  # RunConfig makes one
    max_restarts = failing.max_failures
    supervisor = Supervisor(folder, max_restarts)
    journal = _Journal(folder, on_step)
    with (
        stop_request.signals() as received,
        kept_output.of_driver(order),
        closing(journal),
        ProgressWatch(journal, on_report) as watch,
    ):
        while True:
            # What is ignored here is of Ray Train v2, whose annotations are still those of v1.
            trainer = _Trainer(
                GovernedLoop(loop, order, watch.actor, on_report is not None),  # type: ignore[arg-type]  # it returns
                train_loop_config=dict(config or {}),
                torch_config=_processes(order, scaling),
                scaling_config=scaling,
                run_config=replace(
                    run_config,
                    failure_config=replace(failing, max_failures=-1),
                    callbacks=[*(run_config.callbacks or []), supervisor],  # type: ignore[list-item]
                ),
                dataset_config=planned_shard.PlanData(order),
            )
            try:
                result = _fit(trainer, folder, received)
            except ray.train.ControllerError as error:
                raise _raised_by_controller(error, order) from error
            except ray.train.TrainingFailedError as error:
                raise GovrayError(str(error).splitlines()[-1], where=_name(order)) from error
            except ray.exceptions.RayActorError as error:
                decision = _note(
                    folder,
                    failures.controller_lost(error, where=_name(order)),
                    max_restarts=max_restarts,
                )
                if not decision.restart:
                    raise decision.error from error
                _release(watch.actor)
                continue
            stopped = result.return_value  # type: ignore[attr-defined]
            return order.stop if stopped is None else int(stopped)


def _processes(order: Order, scaling: ray.train.ScalingConfig | None) -> TorchConfig:
    """How the workers are joined."""
    patience = order.settings.collective_timeout_s
    if order.settings.framework == "torch":
        return TorchConfig(backend=backends(scaling), timeout_s=patience)
    from govray.train.jax.joined_processes import JoinedConfig

    gpus = bool(scaling and scaling.use_gpu)
    return JoinedConfig(backend="gloo", timeout_s=patience, gpus=gpus)


class _Trainer(ScaledTrainer):
    """Ray's trainer, whose controller itself says which rows each worker reads."""

    # Of Ray Train v2; a type checker sees v1.
    def _create_default_callbacks(self) -> list[Any]:
        return [
            planned_shard.Configured(self.train_run_context, {})  # type: ignore[attr-defined]
            if type(each) is DatasetsCallback
            else each
            for each in super()._create_default_callbacks()  # type: ignore[misc]
        ]


class Supervisor(ray.train.UserCallback):
    """Lives in Ray's controller, and decides each time that workers have failed."""

    def __init__(self, folder: Place, max_restarts: int) -> None:
        self._folder = folder
        self._max_restarts = max_restarts
        self._decided = 0

    def after_exception(
        self, run_context: Any, worker_exceptions: Mapping[int, BaseException]
    ) -> None:
        """Return to let Ray restart the workers; raise to end the run with that error."""
        attempt = run_lock.last_attempt(self._folder)
        if attempt == self._decided and any(map(failures.preempted, worker_exceptions.values())):
            return  # Ray looks again and again while it drains a preempted node
        if any(isinstance(failures.cause(e), RolledBack) for e in worker_exceptions.values()):
            self._decided = attempt
            return  # decided, recorded and budgeted before it was raised
        failure = failures.classify(worker_exceptions, where=f"run {self._folder.name}")
        decision = _note(self._folder, failure, max_restarts=self._max_restarts)
        if not decision.restart:
            raise decision.error
        self._decided = attempt


@dataclass(frozen=True)
class GovernedLoop:
    """The user's loop with its order in place; what every worker runs.

    Returns the step at which the run stopped because it was asked to, else None.
    """

    loop: Loop
    order: Order
    progress: Any
    reports: bool = False

    def __call__(self, config: dict[str, Any]) -> int | None:
        operator_key.refuse_held(
            self.order.key_variables,
            os.environ,
            where=f"rank {ray.train.get_context().get_world_rank()} on {socket.gethostname()}",
        )
        torch.set_num_threads(self.order.settings.threads)
        if self.order.settings.deterministic:
            fix_kernels()
        seed_generators(self.order.settings.seed)
        shard = ray.train.get_dataset_shard(planned_shard.DATASET)
        self.progress.stand.remote(get_current_placement_group())
        _introduce(place(self.order.folder), shard.attempt)
        token = current.set(
            Assignment(
                order=self.order,
                shard=shard,
                device=get_device(),
                on_step=lambda step, metrics: self.progress.put.remote(step, dict(metrics)),
                on_report=self._report if self.reports else None,
            )
        )
        rank = ray.train.get_context().get_world_rank()
        try:
            with kept_output.of_worker(self.order, rank, shard.attempt):
                return self._run(config)
        finally:
            current.reset(token)

    def _run(self, config: dict[str, Any]) -> int | None:
        try:
            self.loop(config)
        except StopRun as stop:
            return stop.step
        return None

    def _report(self, step: int, metrics: Mapping[str, float]) -> None:
        self.progress.report.remote(step, dict(metrics))


def fix_kernels() -> None:
    """Use only deterministic kernels in this process, from before the first matrix product on.

    Source: torch's notes on reproducibility; cuBLAS reads its variable when it is first used.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


class _Journal:
    """Passes steps on to the caller, and now and then to the event log; the last one always."""

    def __init__(self, folder: Place, on_step: StepCallback) -> None:
        self._folder = folder
        self._on_step = on_step
        self._written = 0.0
        self._held: events.Progress | None = None

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        self._held = events.Progress(at=now(), step=step, loss=metrics["loss"])
        if time.monotonic() - self._written >= PROGRESS_S:
            self._written = time.monotonic()
            self.close()
        self._on_step(step, metrics)

    def close(self) -> None:
        """Write the last step that came, so that a curve does not end before its run."""
        held, self._held = self._held, None
        if held is not None:
            with suppress(OSError, GovrayError):  # a line lost costs nothing
                events.append(self._folder, held)


def _fit(trainer: TorchTrainer, folder: Place, received: list[str]) -> ray.train.Result:
    """``trainer.fit()`` in a thread of its own: in the main one Ray would take SIGINT over."""
    outcome: list[Callable[[], ray.train.Result]] = []

    def run() -> None:
        try:
            result = trainer.fit()
        except BaseException as error:
            outcome.append(_raiser(error))
        else:
            outcome.append(lambda: result)

    thread = threading.Thread(target=run, name="govray-fit", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            if received:
                stop_request.request(folder, received[0])
    except KeyboardInterrupt:
        run_lock.take_over(folder)  # what still runs may no longer write
        raise
    return outcome[0]()


def _release(progress: Any) -> None:
    """Give back what a dead controller reserved, and end the workers that stand on it.

    Ray Train's own cleaner does so too, but gives up on a machine with several clusters. The next
    workers would find the room that they need for themselves, but none to read data in.
    """
    group = ray.get(progress.group.remote())
    if group is not None:
        remove_placement_group(group)


def _raiser(error: BaseException) -> Callable[[], ray.train.Result]:
    def run() -> ray.train.Result:
        raise error

    return run


def _note(
    folder: Place, failure: failures.AttemptFailure, *, max_restarts: int
) -> failures.RestartDecision:
    """Decide on a failure, with the event log as memory, and log it."""
    past: list[events.Failed] = []
    for event in events.read(folder):
        if isinstance(event, events.DriverStarted):
            past.clear()
        elif isinstance(event, events.Failed):
            past.append(event)
    step = recorded_steps(folder)
    decision = failures.decide(failure, past, step=step, max_restarts=max_restarts)
    events.append(
        folder,
        events.Failed(
            at=now(),
            attempt=run_lock.last_attempt(folder),
            failure=failure.kind,
            rank=failure.rank,
            step=step,
            what=str(decision.error)[:4096],
            decision="restart" if decision.restart else "stop",
        ),
    )
    return decision


def _introduce(folder: Place, attempt: int) -> None:
    """Log which process this rank is."""
    try:
        output = os.readlink("/proc/self/fd/1")
    except OSError:
        output = ""
    events.append(
        folder,
        events.WorkerStarted(
            at=now(),
            attempt=attempt,
            rank=ray.train.get_context().get_world_rank(),
            host=socket.gethostname(),
            pid=os.getpid(),
            log=output if output.endswith(".out") else None,
        ),
    )


def _raised_by_controller(error: ray.train.ControllerError, order: Order) -> GovrayError:
    cause = error.controller_failure
    if isinstance(cause, GovrayError):
        return cause
    return GovrayError(
        f"the training controller failed: {type(cause).__name__}: {cause}".splitlines()[0],
        where=_name(order),
        do="Whole checkpoints stay; logs are in the Ray dashboard",
    )


def _name(order: Order) -> str:
    return f"run {order.run_id}"
