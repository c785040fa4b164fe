"""Governed training on Ray: the driver's trainer and the worker's run.

Loaded lazily, so that reading a config or a schema needs neither ray nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from govray.train.driver.trainer import GovernedTrainer
    from govray.train.inputs.experiment_config import read_experiment
    from govray.train.loop.experiment_loop import optimizer_of, schedule_of
    from govray.train.run_folder.figures import ConfusionMatrix, Histogram, PngImage, ResultTable
    from govray.train.watching.chosen_callbacks import TensorBoardCallback, WandbCallback
    from govray.train.watching.mlflow_callback import MLflowCallback
    from govray.train.watching.run_callback import RunCallback
    from govray.train.worker.run import Run
    from govray.train.worker.run_start import govern
    from govray.train.worker.shard_model import shard

__all__ = [
    "ConfusionMatrix",
    "GovernedTrainer",
    "Histogram",
    "MLflowCallback",
    "PngImage",
    "ResultTable",
    "Run",
    "RunCallback",
    "TensorBoardCallback",
    "WandbCallback",
    "govern",
    "optimizer_of",
    "read_experiment",
    "schedule_of",
    "shard",
]

_HOMES = {
    "GovernedTrainer": "driver.trainer",
    "MLflowCallback": "watching.mlflow_callback",
    "Run": "worker.run",
    "RunCallback": "watching.run_callback",
    "TensorBoardCallback": "watching.chosen_callbacks",
    "WandbCallback": "watching.chosen_callbacks",
    "govern": "worker.run_start",
    "optimizer_of": "loop.experiment_loop",
    "read_experiment": "inputs.experiment_config",
    "schedule_of": "loop.experiment_loop",
    "shard": "worker.shard_model",
}

_FIGURES = {"ConfusionMatrix", "Histogram", "PngImage", "ResultTable"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"govray.train.{_HOMES[name]}"), name)
    if name in _FIGURES:
        return getattr(import_module("govray.train.run_folder.figures"), name)
    raise AttributeError(f"module 'govray.train' has no attribute {name!r}")
