"""The weights that a run begins with: equal on all ranks, in the dtype that the run keeps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.engine.gradients.precision import cast_parameters
from govray.errors import UsageError
from govray.train.checkpoint.tensor_shards import is_sharded
from govray.train.inputs.order import Assignment
from govray.train.state.pretrained import load_start


def begin_with(model: nn.Module, assignment: Assignment) -> None:
    """Put the weights that the run begins with into a model, on every rank. Collective.
    Raises ``UsageError``: the model is sharded, and may begin elsewhere than the run says."""
    if is_sharded(model):
        raise UsageError(
            "the model was sharded before it had the weights that the run begins with",
            where=type(model).__name__,
            do="Call govray.train.shard(model) instead of fully_shard",
        )
    if assignment.order.start and not assignment.shard.checkpoint:
        load_start(model, assignment.order.start)
    broadcast([*model.parameters(), *model.buffers()])
    if assignment.order.settings.precision == "bf16":
        cast_parameters(model)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Give every rank rank 0's content, as DDP does when it wraps a model. Collective.
    ``tensors``: of equal shapes, dtypes and devices on all ranks."""
    if dist.is_initialized():
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
