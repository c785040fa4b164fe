"""The callbacks that an experiment file asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from govray import traces
from govray.train.inputs.experiment_config import Experiment
from govray.train.watching.mlflow_callback import MLflowCallback
from govray.train.watching.run_callback import RunCallback
from govray.train.watching.trace_callback import TraceCallback
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
