"""Sharded and whole again, on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from govray.engine.model.gpt import GPT
from govray.errors import UsageError
from govray.train.checkpoint.sharded_file import cut
from govray.train.checkpoint.tensor_shards import (
    HeldPart,
    from_rows,
    held_here,
    held_part,
    is_sharded,
    local_shard,
    own_rows,
    shard,
    whole,
)
from tests.support.ranks import RankPool


def model() -> GPT:
    torch.manual_seed(4)
    return GPT(blocks=3, width=16, context=8, vocabulary=33)


def round_trip(replicate: int = 1) -> dict[str, Any]:
    plain, sharded = model(), model()
    shard(sharded, replicate=replicate)
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


def test_each_copy_is_cut_over_its_own_ranks(four_ranks: RankPool) -> None:
    held = [each["held"] for each in four_ranks.run(round_trip, 2)]
    assert held[:2] == held[2:]
    whole = sum(parameter.numel() for parameter in model().parameters())
    assert sum(held[:2]) == whole > held[0]


def held(replicate: int = 1) -> tuple[int, int]:
    plain, sharded = model(), model()
    shard(sharded, replicate=replicate)
    live = {"whole": torch.arange(3), **sharded.state_dict()}
    copies, rows = held_here(live)
    world = dist.get_world_size() // replicate
    rank = dist.get_rank() % world
    assert held_part(sharded) == HeldPart(rank, world, dist.get_rank() // world)
    assert held_part(plain) is None
    assert ("whole" in copies) == (dist.get_rank() == 0)
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
