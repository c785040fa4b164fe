"""Plain data-parallel training: the denominator of every ratio.

torch's DDP with default settings, mean loss, AdamW. All rows go into all
parameters of the base model; there is no adapter. It does not follow any policy.
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from benchmarks.batch import Batch
from benchmarks.methods.method import Method
from benchmarks.workload import Workload


class PlainDDP(Method):
    """What people run today."""

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
