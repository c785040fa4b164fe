"""The interface that all methods share, and the optimizer that all of them use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import nn

from benchmarks.workload import LEARNING_RATE, Batch, Workload


class Method(ABC):
    """One way to train; making one is collective, as is stepping.

    Attributes:
        workload: What it trains on.
        parameters: What it trains, by the engine's names, adapters' included.
        optimizer: AdamW over these, with torch's default settings.
    """

    def __init__(self, workload: Workload, parameters: Mapping[str, nn.Parameter]) -> None:
        self.workload = workload
        self.parameters = dict(parameters)
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=LEARNING_RATE)

    @classmethod
    def covers(cls, workload: Workload) -> bool:
        """Whether the method can do what the case's policy asks."""
        return True

    @abstractmethod
    def step(self, batch: Batch) -> None:
        """One optimizer step with this rank's rows, on all ranks together."""
