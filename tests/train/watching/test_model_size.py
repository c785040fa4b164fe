"""A run's size before it starts, against sums done by hand and the run's own tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.cases import Shape
from benchmarks.flops import gpt_operations
from govray.engine.gpt import GPT
from govray.engine.model.adapters import Adapters
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.row_order import RowOrder
from govray.train.watching.flops import row_flops
from govray.train.watching.model_size import ModelSize, model_size

GROUPS = ("embedding", "block.0", "block.1", "final_norm", "head")
ALL = Route(dict.fromkeys(GROUPS, 1.0))
UPPER = Route(dict.fromkeys(GROUPS[2:], 1.0))
ADAPTER = Route({}, "acme", 4)
STEPS = 10


def gpt() -> GPT:
    return GPT(context=8, vocabulary=257, blocks=2, width=16, heads=2)


def planned(*routes: Route, rows: int = 1000) -> BatchPlan:
    names = {f"c{i}": (route.digest, f"p{i}") for i, route in enumerate(routes)}
    return BatchPlan(
        seed=1,
        max_steps=STEPS,
        manifest="sha256:" + "a" * 64,
        context=8,
        order=RowOrder(block=1, window=1 << 20),
        streams=plan_streams(
            names,
            {"c0": 1000} | dict.fromkeys([*names][1:], rows),
            rows_per_step={f"p{i}": 2 for i in range(len(names))},
        ),
    )


def size_of(
    *routes: Route,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    rows: int = 1000,
    **more: Any,
) -> ModelSize:
    with torch.device("meta"):
        model = gpt()
        made = optimizer(model.parameters(), lr=0.1)
    groups = layer_groups(model)
    plan = planned(*routes, rows=rows)
    return model_size(model, made, groups, plan, {r.digest: r for r in routes}, **more)


def test_parameters_tokens_and_memory_are_those_of_the_run_itself() -> None:
    model = gpt()
    adapters = Adapters(model, {"acme": 4}, seed=1)
    tensors = [*model.parameters(), *dict(adapters.named_parameters()).values()]
    optimizer = torch.optim.AdamW(tensors)
    for each in tensors:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    moments = sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    )
    size = size_of(ALL, ADAPTER)
    assert size.parameters == size.trainable == sum(each.numel() for each in tensors)
    assert size.weight_bytes == size.gradient_bytes == sum(each.nbytes for each in tensors)
    assert size.optimizer_bytes == moments
    assert size.tokens == 2 * STEPS * 2 * 8


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_fsdp2_deals_the_base_model_and_not_the_adapters(shards: int) -> None:
    base, both = size_of(ALL, shards=shards), size_of(ALL, ADAPTER, shards=shards)
    whole = size_of(ALL)
    assert base.weight_bytes == -(-whole.weight_bytes // shards)
    assert (
        both.weight_bytes - base.weight_bytes
        == 2
        * 4
        * sum(
            4 * sum(layer.weight.shape)
            for layer in gpt().modules()
            if isinstance(layer, nn.Linear) and layer.weight.shape[0] != 257
        )
        // 2
    )


@pytest.mark.parametrize("route", [ALL, UPPER, ADAPTER], ids=["all", "upper", "adapter"])
def test_flops_are_those_of_the_benchmark(route: Route) -> None:
    operations = gpt_operations(Shape(blocks=2, width=16, tokens=8, rows=1), ["acme"])
    expected = 2 * STEPS * row_flops(operations, route)
    # The benchmark's adapters have rank 8.
    wide = Route({}, "acme", 8) if route is ADAPTER else route
    size = size_of(wide)
    assert size.flops == expected
    plain = size_of(ALL)
    assert plain.ratio == 1.0
    assert plain.flops is not None
    assert size.ratio == pytest.approx(expected / plain.flops)


def test_a_stream_ends_with_its_data_and_tombstones_are_not_read() -> None:
    plan = planned(ALL, UPPER)
    routes = {r.digest: r for r in (ALL, UPPER)}
    model = gpt()
    short = plan.model_copy(update={"max_steps": 10_000})
    groups = layer_groups(model)
    assert model_size(model, None, groups, short, routes).tokens == 2 * 1000 * 8
    without = model_size(model, None, groups, plan.without("c1"), routes)
    assert without.tokens == STEPS * 2 * 8
