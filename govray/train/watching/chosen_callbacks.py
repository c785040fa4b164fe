"""The callbacks that an experiment file asks for; those of TensorBoard and of Weights & Biases."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tensorboardX import SummaryWriter

from govray import traces
from govray.errors import UsageError
from govray.extras import install
from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place
from govray.train.inputs.experiment_config import Experiment
from govray.train.watching.mlflow_callback import MLflowCallback
from govray.train.watching.run_callback import RunCallback, RunStarted


class WandbCallback(RunCallback):
    """Logs to Weights & Biases; the extra ``wandb``.

    The key comes from ``WANDB_API_KEY`` or W&B's own login. Its files lie in ``<run>/wandb``, or in
    the working directory if the run is on an object store.

    Args:
        project: Where the run is shown.
        entity: A user or team; the key's own by default.
        mode: ``offline`` only writes files, which ``wandb sync`` sends.
    """

    def __init__(
        self,
        project: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        if find_spec("wandb") is None:
            raise UsageError(
                "Weights & Biases is not installed",
                do=f"Run {install('wandb')}, or leave it out",
            )
        self._project = project
        self._entity = entity
        self._mode = mode

    def start(self, run: RunStarted) -> int | None:
        import wandb

        self._name = run.run_id
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            id=run.run_id,
            name=run.run_id,
            group=run.experiment,
            resume="allow",
            dir=str(run.folder) if isinstance(run.folder, Path) else None,
            config={**run.settings, "policyDigest": run.policy},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        return int(self._run.step) - 1 if self._run.resumed else None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def attested(self, files: Mapping[str, bytes]) -> None:
        """Keep what was signed as an artifact."""
        import wandb

        artifact = wandb.Artifact(f"{self._name}-governance", type="attestation")
        with TemporaryDirectory() as scratch:
            for name, data in files.items():
                file = Path(scratch) / name
                file.write_bytes(data)
                artifact.add_file(str(file))
            self._run.log_artifact(artifact)

    def end(self, outcome: str) -> None:
        """End the run; it counts as failed unless it finished or was stopped."""
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


FOLDER = "tensorboard"
FLUSH_S = 10


class TensorBoardCallback(RunCallback):
    """Writes a run's metrics as scalars to ``<run>/tensorboard``.

    A run on an object store has its files there when its driver ends. Where a run resumes, the
    steps that run again replace those written before.
    """

    def start(self, run: RunStarted) -> int | None:
        self._folder: Place = run.folder / FOLDER
        self._scratch = None if isinstance(self._folder, Path) else TemporaryDirectory()
        self._writer = SummaryWriter(
            logdir=self._scratch.name if self._scratch else str(self._folder),
            purge_step=run.step or None,
            flush_secs=FLUSH_S,
            # tensorboardX names a file by its second: a resume within it would overwrite the first.
            filename_suffix=f".{time.time_ns()}",
        )
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def end(self, outcome: str) -> None:
        """Close the file, and upload it if the run is on an object store."""
        self._writer.close()
        if self._scratch:
            make_folder(self._folder)
            for file in Path(self._scratch.name).iterdir():
                write_whole(self._folder / file.name, file.read_bytes())
            self._scratch.cleanup()


_NO_SETTINGS = frozenset({"attestation_key", "attestation_key_password_file"})


def chosen_callbacks(experiment: Experiment) -> tuple[RunCallback, ...]:
    """One for each tracker, TensorBoard's, and one for traces if the environment asks."""
    return tuple(_chosen(experiment))


def _chosen(experiment: Experiment) -> Iterator[RunCallback]:
    if experiment.tensorboard:
        yield TensorBoardCallback()
    if traces.wanted():
        yield TraceCallback()
    tracking = experiment.tracking
    if tracking and tracking.mlflow:
        yield MLflowCallback(tracking.mlflow.tracking_uri, tracking.mlflow.experiment)
    if tracking and tracking.wandb:
        yield WandbCallback(tracking.wandb.project, tracking.wandb.entity, tracking.wandb.mode)


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name → value of a configuration, without where keys are."""
    return dict(_flat("", {name: v for name, v in config.items() if name not in _NO_SETTINGS}))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif value is None or isinstance(value, str | int | float | bool):
        yield prefix, value
    else:
        yield prefix, str(value)


SPANS = 256
"""Spans of one width. After so many, one covers twice as many steps: a run of a million steps has
some 3,000."""


class TraceCallback(RunCallback):
    """Told of a run and its steps, it sends one trace, below what ``TRACEPARENT`` names.

    The driver makes spans of what it is told. So workers compute what they compute without traces,
    and a step's span ends when the driver hears of it.
    """

    def __init__(self) -> None:
        self._run = traces.Span()
        self._began = self._first = self._last = self._count = 0
        self._width = 1

    def start(self, run: RunStarted) -> int | None:
        self._run = traces.begin("run", parent=os.environ.get(traces.VARIABLE))
        self._run.set(govray_run=run.run_id, govray_policy=run.policy, govray_resumed=run.step)
        self._first, self._last, self._began = run.step, run.step - 1, time.time_ns()
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._last = step
        if step - self._first + 1 >= self._width:
            self._send()

    def end(self, outcome: str) -> None:
        """End the span of the run, and send all."""
        if self._last >= self._first:
            self._send()
        self._run.set(govray_outcome=outcome, govray_steps=self._last + 1)
        if outcome == "failed":
            self._run.fail(outcome)
        self._run.end()
        traces.flush()

    def _send(self) -> None:
        at = time.time_ns()
        span = traces.begin("steps", parent=self._run.traceparent, at=self._began)
        span.set(govray_step_first=self._first, govray_step_last=self._last)
        span.end(at)
        self._first, self._began = self._last + 1, at
        self._count += 1
        if self._count == SPANS:
            self._count, self._width = 0, self._width * 2
