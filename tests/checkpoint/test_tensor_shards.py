"""Sharded and whole again, on real ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from govray.checkpoint.sharded_file import cut
from govray.checkpoint.tensor_shards import (
    from_rows,
    held_here,
    is_sharded,
    local_shard,
    own_rows,
    shard,
    whole,
)
from govray.engine.model.gpt import GPT
from govray.errors import UsageError
from tests.support.ranks import RankPool


def model() -> GPT:
    torch.manual_seed(4)
    return GPT(blocks=3, width=16, context=8, vocabulary=33)


def test_without_ranks_it_says_what_is_missing():
    with pytest.raises(UsageError, match="without a process group"):
        shard(model())


def round_trip() -> dict[str, object]:
    plain, sharded = model(), model()
    shard(sharded)
    with pytest.raises(UsageError, match="sharded already"):
        shard(sharded)
    assert is_sharded(sharded)
    assert not is_sharded(plain)
    held = 0
    for parameter, twin in zip(sharded.parameters(), plain.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        gathered = whole(parameter)
        assert torch.equal(gathered, twin)
        assert not gathered.requires_grad
        assert torch.equal(local_shard(gathered, parameter).to_local(), parameter.to_local())
        assert whole(twin).data_ptr() == twin.data_ptr()
        assert local_shard(gathered, twin) is gathered
        held += parameter.to_local().numel()
    return {"held": held, "all": sum(p.numel() for p in plain.parameters())}


@pytest.mark.parametrize("pool", ["two_ranks", "four_ranks"])
def test_every_parameter_is_cut_and_comes_back(pool: str, request: pytest.FixtureRequest) -> None:
    ranks: RankPool = request.getfixturevalue(pool)
    results = ranks.run(round_trip)
    assert sum(each["held"] for each in results) == results[0]["all"]
    # The control: nobody holds all of it.
    assert all(each["held"] < each["all"] for each in results)


def held() -> tuple[int, int]:
    plain, sharded = model(), model()
    shard(sharded)
    live = {"whole": torch.arange(3), **sharded.state_dict()}
    copies, rows = held_here(live)
    rank, world = dist.get_rank(), dist.get_world_size()
    assert ("whole" in copies) == (rank == 0)
    for name, tensor in plain.state_dict().items():
        own = cut(len(tensor), rank, world)
        assert rows[name] == len(tensor)
        assert own == own_rows(live[name], len(tensor))
        assert torch.equal(copies[name], tensor[own.start : own.stop])
        again = from_rows(copies[name], len(tensor), live[name])
        assert torch.equal(whole(again), tensor)
        assert from_rows(tensor, len(tensor), tensor) is tensor
    first = next(sharded.parameters())
    name = next(name for name, _ in sharded.named_parameters())
    before = copies[name].clone()
    with torch.no_grad():
        first.fill_(7)
    assert torch.equal(copies[name], before), "a copy, not the shard itself"
    return len(copies), len(rows)


@pytest.mark.parametrize("pool", ["two_ranks", "four_ranks"])
def test_a_rank_holds_copies_of_its_rows_and_rank_0_what_is_whole(
    pool: str, request: pytest.FixtureRequest
) -> None:
    ranks: RankPool = request.getfixturevalue(pool)
    (copies, rows), *others = ranks.run(held)
    assert copies == rows + 1
    assert others == [(rows, rows)] * (ranks.size - 1)


def replicated_too() -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    sharded = fully_shard(model(), mesh=mesh)
    with pytest.raises(UsageError, match=r"head\.weight is cut as"):
        held_here({"head.weight": sharded.head.weight})


def test_other_ways_of_sharding_are_refused_by_name(two_ranks: RankPool) -> None:
    two_ranks.run(replicated_too)
