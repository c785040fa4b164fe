"""Sharded and whole again, on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

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
    part_of,
    shard,
    whole,
)
from tests.support.ranks import RankPool


def model() -> GPT:
    torch.manual_seed(4)
    return GPT(blocks=3, width=16, context=8, vocabulary=33)


def test_without_ranks_it_says_what_is_missing():
    with pytest.raises(UsageError, match="without a process group"):
        shard(model())


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


def uneven() -> None:
    shard(model(), replicate=3)


@pytest.mark.parametrize("pool", ["two_ranks", "four_ranks"])
def test_ranks_that_make_no_copies_are_refused(pool: str, request: pytest.FixtureRequest) -> None:
    for error in request.getfixturevalue(pool).outcomes(uneven):
        assert isinstance(error, UsageError)
        assert "can't hold 3 copies" in str(error)
    with pytest.raises(UsageError, match="2 ranks can't hold 2 copies"):
        part_of(0, 2, 2)


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


def test_so_it_does_where_there_are_copies(four_ranks: RankPool) -> None:
    (copies, rows), *others = four_ranks.run(held, 2)
    assert copies == rows + 1
    assert others == [(rows, rows)] * 3


def by_columns() -> None:
    sharded = fully_shard(model(), shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1))
    with pytest.raises(UsageError, match=r"head\.weight is cut as"):
        held_here({"head.weight": sharded.head.weight})
    assert held_part(sharded) is None


def half_in_copies() -> None:
    """One tensor over all ranks, and another over the ranks of a copy."""
    one, other = model(), model()
    shard(one)
    shard(other, replicate=2)
    with pytest.raises(UsageError, match="b is cut as"):
        held_here({"a": one.head.weight, "b": other.head.weight})


def test_other_ways_of_sharding_are_refused_by_name(
    two_ranks: RankPool, four_ranks: RankPool
) -> None:
    two_ranks.run(by_columns)
    four_ranks.run(half_in_copies)
