"""The interface and the optimizer that all methods share, and the plain one as the denominator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


class PlainDDP(Method):
    """Plain data-parallel training, as people run it today: torch's DDP with default settings.

    All rows go into all parameters of the base model; there is no adapter. It follows no policy.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        model = workload.build_model()
        self.optimize(dict(model.named_parameters()))
        self._model = DistributedDataParallel(model)

    @classmethod
    def covers(cls, workload: Workload) -> bool:
        """It asks no policy."""
        return True

    def step(self, batch: Batch) -> None:
        """Forward, backward with overlapped all-reduce, optimizer."""
        tensors = {"tokens": batch.tokens, "targets": batch.targets}
        self.workload.losses(self._model, tensors).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
