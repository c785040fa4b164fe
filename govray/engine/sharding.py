"""A model's tensors as shards over ranks, and whole again.

``shard`` cuts what the aggregator ``fsdp2`` sums: every repeated block is one unit, what
is left of the model another. ``whole`` and ``spread`` go between a sharded tensor and the
values that a file holds, so a checkpoint looks the same however many ranks wrote it, and
loads into any number of them.

What it does not do: several dimensions of ranks (call ``fully_shard`` with a mesh of your
own), shards of adapters.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from govray.errors import UsageError


def shard(model: nn.Module) -> None:
    """Cut the model over all ranks, in place. Collective; the optimizer is made afterwards.

    Raises:
        UsageError: There is no process group, or the model is sharded already.
    """
    if not dist.is_initialized():
        raise UsageError(
            "a model can't be sharded without a process group",
            where="aggregator: fsdp2",
            do="Call torch.distributed.init_process_group, or use aggregator: governed",
        )
    if is_sharded(model):
        raise UsageError(
            "the model is sharded already",
            where="aggregator: fsdp2",
            do="Call shard once, on the plain model",
        )
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on the model."""
    return isinstance(model, FSDPModule)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, detached: gathered from all ranks if it is sharded. Collective then."""
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def spread(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that all ranks hold, cut as ``like`` is."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """What the outermost lists hold."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)
