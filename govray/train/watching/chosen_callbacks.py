"""The callbacks that an experiment file asks for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from govray import traces
from govray.train.inputs.experiment_config import Experiment
from govray.train.watching.mlflow_callback import MLflowCallback
from govray.train.watching.run_callback import RunCallback, RunStarted
from govray.train.watching.wandb_callback import WandbCallback

_NO_SETTINGS = frozenset({"attestation_key", "attestation_key_password_file"})


def chosen_callbacks(experiment: Experiment) -> tuple[RunCallback, ...]:
    """One for each tracker, TensorBoard's, and one for traces if the environment asks."""
    return tuple(_chosen(experiment))


def _chosen(experiment: Experiment) -> Iterator[RunCallback]:
    if experiment.tensorboard:
        from govray.train.watching.tensorboard_callback import TensorBoardCallback

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
        """Begin the span of the run."""
        self._run = traces.begin("run", parent=os.environ.get(traces.VARIABLE))
        self._run.set(govray_run=run.run_id, govray_policy=run.policy, govray_resumed=run.step)
        self._first, self._last, self._began = run.step, run.step - 1, time.time_ns()
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """End a span of steps, if it is full."""
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
