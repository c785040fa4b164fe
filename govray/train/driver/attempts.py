"""A run's attempts: Ray Train starts groups of workers, and this decides what follows each end.

Ray's own limits are lifted. Ray's controller calls `Supervisor` with the workers' errors. It asks
`govray.train.driver.failures`, and ends the run by raising or lets Ray restart. Its memory is the
run's event log, so decisions don't depend on which process has lived how long.

Ray would start an actor for its controller. That imports for seconds what the driver has, and the
workers start only then. Here it runs in the driver, in a thread (`Trainer`). Only a trial of a
search has the actor.

Invariants:

* A refused rank raises, and its process stays until Ray ends it. So no other rank dies of its
  absence first and is taken for the cause.
* The driver's main thread never blocks in Ray, so that signals are heard.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.v2._internal import constants as of_ray
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2._internal.logging.logging import LoggingManager

from govray.data.prepared.ray_failures import cause
from govray.engine.model.rng_state import seed_generators
from govray.errors import GovrayError, Stopped
from govray.storage.place import Place, place
from govray.train.driver import failures, progress
from govray.train.driver.gang import elsewhere, refuse_nowhere
from govray.train.driver.gpu_request import backends
from govray.train.driver.progress import ProgressWatch, StepCallback
from govray.train.driver.scaling_policy import policy_of
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
_END_S = 10.0
"""Seconds for the controller to end its workers, when it is told to."""


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
    supervisor = Supervisor(folder, max_restarts, scaling)
    journal = _Journal(folder, on_step)
    with (
        stop_request.signals() as received,
        progress.of_driver(order),
        closing(journal),
        ProgressWatch(journal, on_report) as watch,
    ):
        # What is ignored here is of Ray Train v2, whose annotations are still those of v1.
        trainer = Trainer(
            GovernedLoop(loop, order, watch.actor, on_report is not None),
            train_loop_config=dict(config or {}),
            torch_config=_processes(order, scaling),
            scaling_config=scaling,
            run_config=replace(
                run_config,
                failure_config=replace(failing, max_failures=-1),
                callbacks=[*(run_config.callbacks or []), supervisor, _Elsewhere(folder)],  # type: ignore[list-item]
            ),
            datasets=planned_shard.partitions(order),
            dataset_config=planned_shard.PlanData(order),
        )
        try:
            patience = stop_request.Patience(order.experiment.preemption_timeout_s)
            result = _fit(trainer, folder, received, patience)
        except ray.train.ControllerError as error:
            raise failures.ended(error.controller_failure, where=_name(order)) from error
        except ray.train.TrainingFailedError as error:
            raise GovrayError(str(error).splitlines()[-1], where=_name(order)) from error
        except ray.exceptions.RayError as error:
            raise failures.ended(error, where=_name(order)) from error
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


class Trainer(TorchTrainer):
    """Ray's trainer, whose controller runs in this process and says which rows each worker reads.

    Source: `TorchTrainer` of Ray 2.60. Its private parts are used here; a test compares their names
    with the installed Ray.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.interrupted = threading.Event()
        """Ends the controller and its workers, from another thread."""

    # Of Ray Train v2; a type checker sees v1.
    def _create_default_callbacks(self) -> list[Any]:
        made = super()._create_default_callbacks()  # type: ignore[misc]
        # A process that takes back the room of a controller's actor that died. In a driver the room
        # is the job's, and goes with it.
        in_driver = ray.is_initialized() and not _in_trial()
        partitions: Any = self.datasets
        return [
            planned_shard.Configured(self.train_run_context, partitions)  # type: ignore[attr-defined]
            if type(each) is DatasetsCallback
            else each
            for each in made
            if not (in_driver and isinstance(each, PlacementGroupCleanerCallback))
        ]

    def _initialize_and_run_controller(self, **arguments: Any) -> ray.train.Result:
        configured = self.run_config
        assert configured.storage_path is not None  # a governed run's configuration names both
        assert configured.name is not None
        folder = Path(configured.storage_path) / configured.name
        arguments["scaling_policy"] = policy_of(self.scaling_config, folder)
        if _in_trial():
            # Ray's actor: without it, nodes of a search whose driver was killed did not go.
            in_actor = super()._initialize_and_run_controller  # type: ignore[misc]
            ended: ray.train.Result = in_actor(**arguments)
            return ended
        _keep_log()
        controller = _Controller(self.interrupted, **arguments)
        asyncio.run(controller.run())
        result: Any = controller.get_result()
        return result


def _in_trial() -> bool:
    """Whether a search's trial drives the run: an actor, and no driver."""
    return ray.get_runtime_context().get_actor_id() is not None


class _Workers(WorkerGroup):
    """Ray's group of workers, started by a process that may be no actor."""

    def _init_train_context_on_workers(
        self, workers: list[Any], sync_actor: Any, given: Mapping[str, Sequence[Any]]
    ) -> None:
        # No worker asks the controller for anything.
        ray.get(
            [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=sync_actor,
                    storage_context=self._storage_context,
                    worker_callbacks=self._worker_callbacks_to_propagate,
                    controller_actor=None,
                    **{name: each[i] for name, each in given.items()},
                )
                for i, worker in enumerate(workers)
            ]
        )
        self._decorate_worker_log_file_paths(workers)

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        """Without the controller's own variables.
        With any variable a worker would be a new process, although the node has one that waits."""
        found = dict(WorkerGroup._get_worker_runtime_env(custom_runtime_env))
        needed = {k: v for k, v in found.pop("env_vars").items() if k not in _OF_CONTROLLER}
        return found | ({"env_vars": needed} if needed else {})


_OF_CONTROLLER = {
    of_ray.HEALTH_CHECK_INTERVAL_S_ENV_VAR,
    of_ray.WORKER_GROUP_START_TIMEOUT_S_ENV_VAR,
    of_ray.ENABLE_PREEMPTION_WATCHER_ENV_VAR,
    of_ray.ENABLE_CONTROLLER_STRUCTURED_LOGGING_ENV_VAR,
}
"""Variables that Ray gives to workers, and that none of them reads."""


class _Interrupted(Exception):
    """The controller was told to end."""


class _Controller(TrainController):
    """Ray's controller, which another thread can end."""

    worker_group_cls = _Workers

    def __init__(self, interrupted: threading.Event, **arguments: Any) -> None:
        self._interrupted = interrupted
        super().__init__(**arguments)

    async def _run_control_loop_iteration(self) -> None:
        if self._interrupted.is_set():
            if self._worker_group is not None:
                self._worker_group.abort()
            raise _Interrupted
        await super()._run_control_loop_iteration()


def _keep_log() -> None:
    """Let Ray's controller write its log among those of the cluster, and not to this process's.
    Ray would configure logging anew, which closes every handler of the process."""
    os.environ.setdefault(of_ray.ENABLE_CONTROLLER_STRUCTURED_LOGGING_ENV_VAR, "0")
    log, folder = logging.getLogger("ray.train"), LoggingManager.get_log_directory()
    if folder is not None and not log.handlers:
        file = Path(folder) / f"ray-train-controller-{os.getpid()}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        log.addHandler(logging.FileHandler(file, delay=True))
    log.setLevel(logging.INFO)
    log.propagate = False


class Supervisor(ray.train.UserCallback):
    """Lives in Ray's controller, and decides each time that workers have failed."""

    def __init__(
        self, folder: Place, max_restarts: int, scaling: ray.train.ScalingConfig | None = None
    ) -> None:
        self._folder = folder
        self._max_restarts = max_restarts
        self._scaling = scaling
        self._decided = 0

    def after_exception(
        self, run_context: Any, worker_exceptions: Mapping[int, BaseException]
    ) -> None:
        """Return to let Ray restart the workers; raise to end the run with that error."""
        attempt = run_lock.last_attempt(self._folder)
        if attempt == self._decided and any(map(failures.preempted, worker_exceptions.values())):
            return  # Ray looks again and again while it drains a preempted node
        if any(isinstance(cause(e), RolledBack) for e in worker_exceptions.values()):
            self._decided = attempt
            return  # decided, recorded and budgeted before it was raised
        failure = failures.classify(worker_exceptions, where=f"run {self._folder.name}")
        decision = _note(
            self._folder, failure, max_restarts=self._max_restarts, scaling=self._scaling
        )
        if not decision.restart:
            raise decision.error
        self._decided = attempt


class _Elsewhere(ControllerCallback):
    """Lives in Ray's controller, and keeps workers off the nodes that log policies excluded."""

    def __init__(self, folder: Place) -> None:
        self._folder = folder

    def on_controller_start_worker_group(
        self, *, scaling_config: Any, num_workers: int
    ) -> dict[str, str] | None:
        """The labels of each worker's node, in the place of the configuration's."""
        excluded = events.excluded_nodes(self._folder)
        return elsewhere(scaling_config, excluded) if excluded else None


@dataclass(frozen=True)
class GovernedLoop:
    """The user's loop with its order in place; what every worker runs.
    Returns the step at which the run stopped because it was asked to, else None."""

    loop: Loop
    order: Order
    progress: Any
    reports: bool = False

    def __call__(self, config: dict[str, Any]) -> int | None:
        operator_key.refuse_held(
            operator_key.variables(self.order.experiment.attestation_key),
            os.environ,
            where=f"rank {ray.train.get_context().get_world_rank()} on {socket.gethostname()}",
        )
        torch.set_num_threads(self.order.experiment.threads)
        if self.order.experiment.deterministic:
            fix_kernels()
        seed_generators(self.order.settings.seed)
        shard = ray.train.get_dataset_shard(planned_shard.DATASET)
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
            with progress.of_worker(self.order, rank, shard.attempt):
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
    Source: torch's notes on reproducibility; cuBLAS reads its variable when it is first used."""
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
        self._held = events.Progress(at=now(), step=step, loss=metrics.get("loss"))
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


def _fit(
    trainer: Trainer, folder: Place, received: list[str], patience: stop_request.Patience
) -> ray.train.Result:
    """``trainer.fit()`` in a thread of its own: in the main one Ray would take SIGINT over."""
    outcome: list[Callable[[], ray.train.Result]] = []
    done = threading.Event()  # Python 3.11 takes a thread whose join was interrupted for ended

    def run() -> None:
        try:
            result = trainer.fit()
        except BaseException as error:
            outcome.append(_raiser(error))
        else:
            outcome.append(lambda: result)
        finally:
            done.set()

    threading.Thread(target=run, name="govray-fit", daemon=True).start()
    try:
        while not done.wait(_POLL_S):
            if received:
                stop_request.request(folder, received[0])
            if why := patience.over(received):
                raise run_lock.killed(folder, why)
    except (KeyboardInterrupt, Stopped):
        run_lock.take_over(folder)  # what still runs may no longer write
        trainer.interrupted.set()
        done.wait(_END_S)
        raise
    return outcome[0]()


def _raiser(error: BaseException) -> Callable[[], ray.train.Result]:
    def run() -> ray.train.Result:
        raise error

    return run


def _note(
    folder: Place,
    failure: failures.AttemptFailure,
    *,
    max_restarts: int,
    scaling: ray.train.ScalingConfig | None = None,
) -> failures.RestartDecision:
    """Decide on a failure, with the event log as memory, and log it."""
    past: list[events.Failed] = []
    final: events.LogMatched | None = None
    attempt = run_lock.last_attempt(folder)
    for event in events.read(folder):
        if isinstance(event, events.DriverStarted):
            past.clear()
            final = None  # somebody resumed the run
        elif isinstance(event, events.Failed):
            past.append(event)
        elif isinstance(event, events.LogMatched) and event.action == "no_retry":
            # By the log's name: a rank may print before the first one says that they started.
            final = final or (event if event.log.endswith(f"-{attempt}.log") else None)
    step = recorded_steps(folder)
    decision = failures.decide(failure, past, step=step, max_restarts=max_restarts)
    if final is not None and decision.restart:
        decision = failures.RestartDecision(False, failures.not_retried(failure.error, final))
    elif decision.restart:
        try:
            refuse_nowhere(scaling, events.excluded_nodes(folder))
        except GovrayError as nowhere:
            decision = failures.RestartDecision(False, nowhere)
    events.append(
        folder,
        events.Failed(
            at=now(),
            attempt=attempt,
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
            node=ray.get_runtime_context().get_node_id(),
            log=output if output.endswith(".out") else None,
        ),
    )


def _name(order: Order) -> str:
    return f"run {order.run_id}"
