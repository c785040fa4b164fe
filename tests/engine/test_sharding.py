"""Sharded and whole again, on real ranks."""

from __future__ import annotations

import pytest
import torch
from ranks import RankPool
from torch.distributed.tensor import DTensor

from govray.engine.gpt import GPT
from govray.engine.sharding import is_sharded, shard, spread, whole
from govray.errors import UsageError


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
        assert torch.equal(spread(gathered, parameter).to_local(), parameter.to_local())
        assert whole(twin).data_ptr() == twin.data_ptr()
        assert spread(gathered, twin) is gathered
        held += parameter.to_local().numel()
    return {"held": held, "all": sum(p.numel() for p in plain.parameters())}


@pytest.mark.parametrize("pool", ["two_ranks", "four_ranks"])
def test_every_parameter_is_cut_and_comes_back(pool: str, request: pytest.FixtureRequest) -> None:
    ranks: RankPool = request.getfixturevalue(pool)
    results = ranks.run(round_trip)
    assert sum(each["held"] for each in results) == results[0]["all"]
    # The control: nobody holds all of it.
    assert all(each["held"] < each["all"] for each in results)
