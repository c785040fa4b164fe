"""The interface that all methods share, and the optimizer that all of them use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import nn

from benchmarks.batch import Batch
from benchmarks.cases import LEARNING_RATE
from benchmarks.workload import Workload


class Method(ABC):
    """One way to train. Construction and steps are collective.

    Attributes:
        workload: What it trains on.
        parameters: What it trains, by the engine's names, adapters' included.
        optimizer: AdamW over these, with torch's default settings.
    """

    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def optimize(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Train these parameters; called once, when the method has built its model."""
        self.parameters = dict(parameters)
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=LEARNING_RATE)

    @classmethod
    def covers(cls, workload: Workload) -> bool:
        """Whether the method can do what the case's policy asks; here, of one adapter at most."""
        return len(workload.adapters) <= 1

    @abstractmethod
    def step(self, batch: Batch) -> None:
        """One optimizer step with this rank's rows, on all ranks together."""


class OnGpu(Method):
    """A method that only a GPU runs."""

    @classmethod
    def covers(cls, workload: Workload) -> bool:
        """Any policy, on a GPU."""
        return workload.device.type == "cuda"
