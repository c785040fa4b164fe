"""Freezing by hand: a full backward per class, forbidden gradients zeroed afterwards.

Each profile's rows go through DDP under ``no_sync``. Their gradients are summed over ranks. Those
of layer groups that the profile may not update are set to zero, and the rest is added up. So every
class costs a full backward and a full all-reduce. The counts N_l come from the case, at no cost.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.batch import Batch
from benchmarks.cases import ADAPTER_NAME, ADAPTER_RANK
from benchmarks.methods.lora import RowLora
from benchmarks.methods.method import Method
from benchmarks.methods.reduce import sum_over_ranks
from benchmarks.workload import Workload
from govray.governance.policy.route import ADAPTER


class Zeroing(Method):
    """One backward and one all-reduce for each class."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        model = workload.build_model()
        self._lora = RowLora(model, ADAPTER_NAME, ADAPTER_RANK) if workload.adapter else None
        self.optimize(
            dict(model.named_parameters()) | (self._lora.named_parameters() if self._lora else {})
        )
        self._model = DistributedDataParallel(model)

    def step(self, batch: Batch) -> None:
        """All classes one after another, then the optimizer."""
        totals: dict[str, Tensor] = {}
        for profile in self.workload.routes:
            for name, gradient in self._permitted(batch, profile).items():
                totals[name] = totals[name] + gradient if name in totals else gradient
        for name, parameter in self.parameters.items():
            count = self.workload.group_targets[self.workload.group_of(name)]
            parameter.grad = totals[name] / count
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _permitted(self, batch: Batch, profile: str) -> dict[str, Tensor]:
        """A class's gradients summed over all ranks, zero where its route forbids."""
        route = self.workload.routes[profile]
        self.optimizer.zero_grad()
        # A rank without rows of this class still takes part in its all-reduce.
        if batch.positions[profile]:
            adapter = self._lora.active() if self._lora and route.adapter else nullcontext()
            with self._model.no_sync(), adapter:
                self.workload.losses(self._model, batch.rows(profile)).sum().backward()
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.parameters.items()
            if route.adapter or not name.startswith(ADAPTER)
        }
        sum_over_ranks(list(gradients.values()))
        for name, gradient in gradients.items():
            if self.workload.group_of(name) not in route.groups:
                gradient.zero_()
        return gradients
