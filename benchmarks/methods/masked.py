"""The base of methods that mask gradients row by row in the forward pass.

All parameters are in the graph of every step, so plain DDP can host them, with its overlap. The
counts N_l come from the case, at no cost.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.batch import Batch
from benchmarks.methods.method import Method
from benchmarks.workload import Workload
from govray.engine.model.gpt import GPT


class MaskedForward(Method):
    """Training through a module that is called with tokens and each profile's row mask."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        module, parameters = self.build()
        self.optimize(parameters)
        self._module = DistributedDataParallel(module)

    @abstractmethod
    def build(self) -> tuple[nn.Module, Mapping[str, nn.Parameter]]:
        """The module, (tokens, profile → mask of (rows,)) → logits, and its parameters."""

    def step(self, batch: Batch) -> None:
        """Masked forward, one backward, each group's gradient divided by its own count."""
        masks = {}
        for profile, span in batch.spans.items():
            masks[profile] = torch.zeros(
                len(batch.tokens), dtype=torch.bool, device=batch.tokens.device
            )
            masks[profile][span] = True
        losses = self.workload.losses(
            lambda tokens: self._module(tokens, masks),
            {"tokens": batch.tokens, "targets": batch.targets},
        )
        losses.mean().backward()
        # DDP has computed the mean over all rows of all ranks.
        total = self.workload.world_size * losses.numel()
        for name, parameter in self.parameters.items():
            count = self.workload.group_targets[self.workload.group_of(name)]
            if count != total and parameter.grad is not None:
                parameter.grad *= total / count
        self.optimizer.step()
        self.optimizer.zero_grad()


def stages(model: GPT) -> Iterator[tuple[str, nn.Module]]:
    """The model's layer groups and their modules, in the order in which they run."""
    yield "embedding", model.embedding
    for index, block in enumerate(model.blocks):
        yield f"block.{index}", block
    yield "final_norm", model.final_norm
    yield "head", model.head


def union(masks: Mapping[str, Tensor], profiles: list[str]) -> Tensor:
    """Rows of any of these profiles; at least one is given."""
    return torch.stack([masks[profile] for profile in profiles]).any(0)
