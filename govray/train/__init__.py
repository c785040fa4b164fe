"""Governed training on Ray: the driver's trainer and the worker's run.

Loaded lazily, so that reading a config or a schema needs neither ray nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from govray.train.sharding import shard
    from govray.train.trainer import GovernedTrainer
    from govray.train.worker import Run, govern

__all__ = ["GovernedTrainer", "Run", "govern", "shard"]

_HOMES = {"GovernedTrainer": "trainer", "Run": "worker", "govern": "worker", "shard": "sharding"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"govray.train.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'govray.train' has no attribute {name!r}")
