"""Several processes that audit one model together: each holds its rows of the weights.

``torchrun --nproc-per-node 2 --no-python govray runs audit RUN`` starts them, on one machine
or several. The model is shared by FSDP2, as in training, so no rank ever holds all of it. Each rank
makes every forward of the audit, in the same order. So all come to the same evidence, and rank 0
writes it.

Invariant: what may fail on one rank alone fails on all, before a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from govray.engine.model.stored_weights import Stored, require_names
from govray.errors import CouldNotCheck, Refused
from govray.governance.attestation import model_folder
from govray.train.checkpoint import commit_folder, sharded_init, tensor_shards
from govray.train.checkpoint.sharded_file import cut
from govray.train.checkpoint.stored_tensors import held_rows, tensors_of
from govray.train.checkpoint.tensor_shards import fail_together


@contextmanager
def launched_ranks() -> Iterator[int]:
    """This process's rank among those that ``torchrun`` started; 0 where it started none.
    Raises ``CouldNotCheck``: another rank failed meanwhile."""
    if not dist.is_torchelastic_launched():
        yield 0
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank()
    except RuntimeError as error:  # of gloo, when a peer is gone
        raise CouldNotCheck(
            "another rank of the audit failed",
            where=f"rank {dist.get_rank()}",
            do="See what it said, and start all ranks again",
        ) from error
    finally:
        dist.destroy_process_group()


def shared() -> bool:
    """Whether several ranks audit together."""
    return dist.is_initialized() and dist.get_world_size() > 1


def share_model(
    build: Callable[[], nn.Module], committed: commit_folder.CommitFolder, where: str
) -> nn.Module:
    """The committed model, of which each rank holds its rows. Collective; ranks fail together.

    Args:
        build: Makes the model on the CPU, with weights that say nothing.
        committed: Of the run. From a commit in parts a rank keeps its rows alone.

    Raises:
        CouldNotCheck: The model can't be built one parameter at a time.
    """
    rank, world = dist.get_rank(), dist.get_world_size()

    def prepared() -> tuple[nn.Module, dict[str, Tensor]]:
        try:
            model = sharded_init.rows_of(build, rank, world).model
        except sharded_init.NeedsWhole as error:
            raise CouldNotCheck(
                f"the model can't be shared before it is whole: {error}",
                where=where,
                do="Audit it in one process",
            ) from error
        buffers = {name for name, _ in model.named_buffers()}
        rows, counts = _own_rows(committed, buffers, rank, world)
        _require_fit(model, rows, counts, where)
        return model, rows

    model, rows = fail_together(prepared)
    cpu = torch.device("cpu")
    tensor_shards.shard(model, device=cpu)
    tensor_shards.take_rows(model, rows, cpu)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in rows:
                buffer.copy_(rows[name])
    return model


def _own_rows(
    committed: commit_folder.CommitFolder, buffers: Collection[str], rank: int, world: int
) -> tuple[dict[str, Tensor], Mapping[str, int]]:
    """This rank's rows of each parameter and whole buffers, and the rows of the whole ones."""
    file = model_folder.WEIGHTS
    index = None if file in committed.entries else committed.index
    if index is not None and file in index.rows:
        counts = dict(index.rows[file])
        found = held_rows(committed, index, file, lambda _, rows: cut(rows, rank, world))
    else:
        counts, found = {}, tensors_of(committed, file)
    own = {}
    for name, tensor in found.items():
        if name in counts or not tensor.dim():
            own[name] = tensor
            continue
        counts[name] = len(tensor)
        if name in buffers:
            own[name] = tensor
            continue
        part = cut(len(tensor), rank, world)
        own[name] = tensor[part.start : part.stop].clone()
    return own, counts


def _require_fit(
    model: nn.Module, rows: Mapping[str, Tensor], counts: Mapping[str, int], where: str
) -> None:
    stored = {
        name: Stored(
            (counts[name], *tensor.shape[1:]) if tensor.dim() else (), tensor.is_floating_point()
        )
        for name, tensor in rows.items()
    }
    do = "Audit with the code that the run was trained with"
    require_names(model, stored, where=where, error=Refused, do=do)
