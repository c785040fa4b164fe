"""A model's tensors as shards over ranks, and whole again.

``shard`` cuts the model for the aggregator ``fsdp2``: every repeated block is one unit, and the
rest of the model another. A rank commits its own rows (`held_here`, in the form of
``sharded_file.py``). It restores its rows from a commit of any number of ranks (`own_rows`,
`from_rows`) or from a whole tensor (`local_shard`). `whole` gathers a tensor.

Ranks may hold several copies of the model (HSDP). Then the ranks of one copy share it, and the
first copy is committed. Adapters are not sharded.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", where
several copies are called hybrid sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from govray.errors import GovrayError, UsageError
from govray.train.checkpoint.sharded_file import cut

T = TypeVar("T")


@dataclass(frozen=True)
class HeldPart:
    """Which part of a sharded model this rank holds.

    Attributes:
        number: The part's, from 0.
        copy: Which copy of the model the part belongs to, from 0.
    """

    number: int
    of: int
    copy: int


def part_of(rank: int, world: int, replicate: int = 1) -> HeldPart:
    """The part of one rank: the ranks of a copy follow each other."""
    parts, rest = divmod(world, replicate)
    if rest or (replicate > 1 and parts < 2):
        raise UsageError(
            f"{world} ranks can't hold {replicate} copies of a model that ranks share",
            where="sharding.replicate",
            do=f"Give {2 * replicate} workers, or another multiple of {replicate} above it",
        )
    return HeldPart(rank % parts, parts, rank // parts)


def shard(
    model: nn.Module,
    *,
    mixed: bool = False,
    device: torch.device | None = None,
    replicate: int = 1,
) -> None:
    """Cut the model over all ranks, in place. Collective; the optimizer is made afterwards.

    Args:
        model: The plain model. On the meta device, `take_rows` gives it numbers afterwards.
        device: Where the shards are to be; the model's own device by default.
        mixed: Gather parameters and compute in bfloat16, and give the model's output and sum
            gradients in float32. Shards keep their dtype.
        replicate: Copies of the model that the ranks hold together; see `part_of`.

    Raises:
        UsageError: There is no process group, the ranks can't hold so many copies, or the model is
            sharded already.
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
    device = device or next(model.parameters()).device
    world = dist.get_world_size()
    parts = part_of(dist.get_rank(), world, replicate).of
    mesh = (
        init_device_mesh(device.type, (replicate, parts), mesh_dim_names=("replicate", "shard"))
        if replicate > 1
        else init_device_mesh(device.type, (world,))
    )
    low = torch.bfloat16 if mixed else None
    wide = torch.float32 if mixed else None
    within = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=wide)
    around = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=wide, output_dtype=wide)
    for block in _blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=within)
    fully_shard(model, mesh=mesh, mp_policy=around)


@torch.no_grad()
def take_rows(model: nn.Module, rows: Mapping[str, Tensor], device: torch.device) -> None:
    """Put this rank's rows into a model that was sharded on the meta device.

    Args:
        model: Its buffers are real, and keep their numbers.
        rows: FQN → (own rows, …), for each parameter; cast to its dtype.
        device: Where the shards and the buffers are to be.
    """
    # What `Module.to_empty` does, but for buffers, which it would empty too.
    model._apply(
        lambda each: torch.empty_like(each, device=device) if each.is_meta else each.to(device)
    )
    for name, parameter in model.named_parameters():
        cast(DTensor, parameter).to_local().copy_(rows[name])


def is_sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on the model."""
    return isinstance(model, FSDPModule)


def held_part(model: nn.Module) -> HeldPart | None:
    """Which part of a model this rank holds; None if it is not sharded, or otherwise than by rows
    over all ranks."""
    cuts = (_part(each) for each in model.parameters() if isinstance(each, DTensor))
    return next(cuts, None)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, detached: gathered from all ranks if it is sharded. Collective then.
    ``tensor``: any shape; the result has its dtype and device."""
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_shard(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor that all ranks hold, cut as ``like`` is.

    A value that is cut already stays as it is.

    Args:
        value: Whole, of the shape of ``like``, any dtype, on its device.
    """
    if isinstance(value, DTensor) or not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def held_here(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Copies, in host memory, of what this rank commits of named tensors.

    Of a sharded tensor that is the rows that the rank holds. Any other is copied whole on rank 0,
    and not at all on the others. Copies from a GPU go to pinned memory, and are awaited together.

    Returns:
        The copies, and for each sharded tensor the rows (first dimension) of the whole.

    Raises:
        UsageError: A tensor is sharded otherwise than by rows over all ranks, or over all ranks of
            each copy.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    copies: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    parts: set[HeldPart | None] = set()
    for name, tensor in tensors.items():
        value = tensor.detach()
        if isinstance(value, DTensor) and any(each != Replicate() for each in value.placements):
            local, part = value.to_local(), _part(value)
            parts.add(part)
            own = len(cut(len(value), part.number, part.of)) if part else None
            if len(local) != own or len(parts) > 1:
                raise UsageError(
                    f"{name} is cut as {value.placements} over {value.device_mesh}, and a "
                    "checkpoint holds rows, over all ranks",
                    where="aggregator: fsdp2",
                    do="Call govray.train.shard(model) instead of fully_shard",
                )
            rows[name] = len(value)
            copies[name] = _host_copy(local)
        elif first:
            value = value.to_local() if isinstance(value, DTensor) else value
            copies[name] = _host_copy(value)
    if any(each.is_pinned() for each in copies.values()):
        torch.cuda.current_stream().synchronize()  # once, for all of them
    return copies, rows


def _host_copy(tensor: Tensor) -> Tensor:
    """A copy in host memory; of a GPU's tensor one under way, into memory that stays in place."""
    if not tensor.is_cuda:
        return tensor.to("cpu", copy=True)
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def own_rows(like: Tensor | None, rows: int) -> range:
    """Which of so many rows this rank holds of a tensor that is cut as ``like`` is.
    ``like``: any shape, dtype and device; None for a tensor that is not cut."""
    if not isinstance(like, DTensor) or Shard(0) not in like.placements:
        return range(rows)
    mesh, dim = like.device_mesh, like.placements.index(Shard(0))
    return cut(rows, mesh.get_local_rank(dim), mesh.size(dim))


def _part(value: DTensor) -> HeldPart | None:
    """This rank's part of a tensor that is cut as `shard` cuts; None of another."""
    mesh, rank = value.device_mesh, dist.get_rank()
    if value.placements not in ((Shard(0),), (Replicate(), Shard(0))):
        return None
    if mesh.size() != dist.get_world_size():
        return None
    parts = mesh.size(mesh.ndim - 1)
    expected = [rank // parts, rank % parts][-mesh.ndim :]
    if list(mesh.get_coordinate() or ()) != expected:
        return None
    return HeldPart(rank % parts, parts, rank // parts)


def from_rows(local: Tensor, rows: int, like: Tensor | None) -> Tensor:
    """This rank's rows as a part of the tensor of so many rows, cut as ``like`` is.

    Args:
        local: The rows that `own_rows` gives: (own rows, …), any dtype and device.
        rows: The first dimension of the whole tensor.
        like: A parameter; None, or one that is not cut, to get ``local`` back.

    Returns:
        ``local`` on the device of ``like``, or a DTensor of it, in its dtype.
    """
    if not isinstance(like, DTensor):
        return local
    shape = torch.Size((rows, *local.shape[1:]))
    return DTensor.from_local(
        local.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def fail_together(work: Callable[[], T]) -> T:
    """What ``work`` returns; or the first rank's error, on all of them. Collective.
    ``work``: without a collective of its own."""
    result: T | None = None
    failure: GovrayError | None = None
    try:
        result = work()
    except GovrayError as error:
        failure = error
    failures: list[GovrayError | None] = [failure]
    if dist.is_initialized():
        failures = [None] * dist.get_world_size()
        dist.all_gather_object(failures, failure)
    for each in failures:
        if each is not None:
            raise each
    return result  # type: ignore[return-value]  # no rank failed, so it is there


def units(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters that `shard` makes whole together: of each block, and the rest."""
    blocks = [list(block.parameters()) for block in _blocks(model)]
    inside = {id(parameter) for block in blocks for parameter in block}
    return [*blocks, [each for each in model.parameters() if id(each) not in inside]]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """What the outermost lists hold."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)
