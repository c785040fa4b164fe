"""Parameters are whole, or cut by FSDP2 over all ranks; whatever else torch's DTensor can do is
refused by name.

N_l counts the loss targets of every rank, and each rank has rows of its own. So every rank's
gradient must be in every sum, once. Tensor parallelism breaks that: ranks of a tensor dimension
read the same rows, which would count once for each. Norms and slices would have to know of two
meshes, too. A mesh of some ranks breaks it as well: it leaves the others out of the sum.

FSDP2's meshes have one dimension, or two if ranks hold copies (HSDP).

Source: torch.distributed.tensor.parallel; Shoeybi et al. 2019, "Megatron-LM".
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from govray.errors import UsageError


def refuse_other_meshes(model: nn.Module, *, sharded: bool) -> None:
    """Refuse a model with a parameter that is shared in a way that sums can't follow. Raises
    ``UsageError``: names the parameter, how it is cut, and over which dimensions of ranks."""
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor) or (sharded and _covers_all_ranks(parameter)):
            continue
        mesh = parameter.device_mesh
        sizes = dict(zip(mesh.mesh_dim_names or range(mesh.ndim), mesh.shape, strict=True))
        dims = ", ".join(f"{dim}: {size}" for dim, size in sizes.items())
        raise UsageError(
            f"parameter {name} is a DTensor, cut as {parameter.placements} over the mesh "
            f"({dims}); govray shares a model by FSDP2 alone, over all ranks",
            where="model",
            do="Leave parallelize_module and meshes of some ranks out, and call "
            "govray.train.shard(model) under aggregator: fsdp2; sharding.replicate makes copies",
        )


def _covers_all_ranks(parameter: DTensor) -> bool:
    *copies, cut = parameter.placements
    world = dist.get_world_size() if dist.is_initialized() else 1
    return (
        isinstance(cut, Shard)
        and copies in ([], [Replicate()])
        and parameter.device_mesh.size() == world
    )
