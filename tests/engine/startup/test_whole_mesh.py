"""Tensor parallelism, and meshes of some ranks, are refused by name: their sums would be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from govray.engine import step
from govray.engine.model.gpt import GPT, loss
from govray.engine.startup.whole_mesh import refuse_other_meshes
from govray.errors import UsageError
from govray.train.checkpoint.tensor_shards import shard
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.ranks import RankPool


def gpt() -> GPT:
    torch.manual_seed(5)
    return GPT(blocks=2, width=8, context=5, vocabulary=11, heads=2)


def trained(model: nn.Module, aggregator: str) -> dict[str, Any]:
    """The weights after a governed step, in which each rank has rows of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    route = allow_all(gpt())
    run = governed(model, optimizer, [route], aggregator=aggregator, tries_rows=False)
    rank = dist.get_rank()
    run(step_batch(0, [micro_batch(route, token_rows(1, 5, 11, rank), rank)]), loss)
    return {
        name: p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()
        for name, p in model.named_parameters()
    }


def by_tensor(aggregator: str) -> None:
    """A model whose MLPs two ranks share by torch's tensor parallelism."""
    model = gpt()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block.mlp, mesh["tensor"], plan)
    if aggregator == "fsdp2":
        fully_shard(model, mesh=mesh["data"])
        with pytest.raises(UsageError, match=r"up\.weight .* \(data: 1, tensor: 2\)"):
            refuse_other_meshes(model.blocks[0].mlp, sharded=True)
    trained(model, aggregator)


@pytest.mark.parametrize(
    ("aggregator", "what"),
    [
        ("governed", r"parameter blocks\.0\.mlp\.up\.weight is a DTensor, .* \(tensor: 2\)"),
        ("ddp", r"parameter blocks\.0\.mlp\.up\.weight is a DTensor, .* \(tensor: 2\)"),
        ("fsdp2", r"parameter embedding.tokens.weight is a DTensor, .* \(data: 1\)"),
    ],
)
def test_tensor_parallelism_is_refused_by_name(
    two_ranks: RankPool, aggregator: str, what: str
) -> None:
    outcomes = two_ranks.outcomes(by_tensor, aggregator)
    for error in outcomes:
        assert isinstance(error, UsageError)
        with pytest.raises(UsageError, match=what):
            raise error
        assert "govray.train.shard(model)" in (error.do or "")
    assert str(outcomes[0]) == str(outcomes[1])


def over_some_ranks(refuses: bool) -> dict[str, Any]:
    """Every second rank shares the model, so half of them are in no sum of the other half."""
    model = gpt()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "other"))
    fully_shard(model, mesh=mesh["data"])
    with pytest.MonkeyPatch.context() as patch:
        if not refuses:
            patch.setattr(step, "refuse_other_meshes", lambda model, sharded: None)
        return trained(model, "fsdp2")


def over_all_ranks(replicate: int) -> dict[str, Any]:
    model = gpt()
    shard(model, replicate=replicate)
    return trained(model, "fsdp2")


def test_a_mesh_of_some_ranks_is_refused(four_ranks: RankPool) -> None:
    for error in four_ranks.outcomes(over_some_ranks, True):
        assert isinstance(error, UsageError)
        assert "(data: 2)" in str(error)


@pytest.mark.story
def test_the_control_without_the_refusal_its_weights_are_others(four_ranks: RankPool) -> None:
    expected, copied, wrong = (
        four_ranks.run(function, given)[0]["head.weight"]
        for function, given in ((over_all_ranks, 1), (over_all_ranks, 2), (over_some_ranks, False))
    )
    assert torch.allclose(copied, expected)
    assert not torch.allclose(wrong, expected)
