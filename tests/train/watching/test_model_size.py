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
from govray.engine.huggingface import CausalLM
from govray.engine.model.adapters import Adapters
from govray.engine.model.layer_groups import layer_groups
from govray.governance.policy.route import Route
from govray.governance.record.batch_plan import BatchPlan, plan_streams
from govray.governance.record.row_order import RowOrder
from govray.train.experiment.sections import Ema
from govray.train.state.weight_average import WeightAverage
from govray.train.watching.attention_products import attention_products
from govray.train.watching.flops import row_flops
from govray.train.watching.model_size import ModelSize, model_size
from govray.train.watching.time_left import TimeLeft, hours

SHAPE = Shape(blocks=2, width=16, tokens=8)
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


def test_what_no_route_updates_has_neither_gradient_nor_state() -> None:
    size, whole = size_of(UPPER), size_of(ALL)
    model = gpt()
    groups = layer_groups(model)
    tensors = dict(model.named_parameters())
    upper = sum(tensors[fqn].nbytes for group in GROUPS[2:] for fqn in groups[group])
    assert (size.gradient_bytes, size.optimizer_bytes) == (upper, 2 * upper)
    assert size.weight_bytes == whole.weight_bytes


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


@pytest.mark.parametrize(
    ("optimizer", "share"),
    [
        (torch.optim.AdamW, 2),
        (torch.optim.SGD, 0),
        (torch.optim.NAdam, 2),
        (torch.optim.RMSprop, 1),
    ],
)
def test_each_optimizer_has_the_state_that_it_makes(
    optimizer: type[torch.optim.Optimizer], share: int
) -> None:
    size = size_of(ALL, optimizer=optimizer)
    assert size.optimizer_bytes == share * size.gradient_bytes


def test_an_optimizer_that_nobody_can_try_is_left_out_and_said_so() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("needs what only its loop has")

    size = size_of(ALL, optimizer=Own)
    assert size.optimizer_bytes is None
    assert "a rank without the optimizer" in size.text


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


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_attention_of_a_library_s_model_is_two_products_a_block(kind: str) -> None:
    shape = (
        {"n_embd": 16, "n_layer": 3, "n_head": 2}
        if kind == "gpt2"
        else {
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 32,
        }
    )
    with torch.device("meta"):
        model = CausalLM(context=8, vocabulary=257, config={"model_type": kind, **shape})
    places = {id(each): 2 * n for n, each in enumerate(model.parameters())}
    found = attention_products(model, places, 8)
    assert found is not None
    # T·T scores of 16 numbers each, over all heads; and as much for the values.
    assert [each.flops for each in found] == [2 * 8 * 8 * 16] * 6
    blocks = layer_groups(model)
    tensors = dict(model.named_parameters())
    for number, (scores, values) in enumerate(zip(found[::2], found[1::2], strict=True)):
        inside = [places[id(tensors[fqn])] for fqn in blocks[f"block.{number}"]]
        assert min(inside) < scores.place == values.place < max(inside)


def test_a_forward_that_takes_more_than_tokens_is_said_to_lack_attention() -> None:
    class Twofold(GPT):
        def forward(self, tokens: Any, images: Any) -> Any:  # type: ignore[override]
            return super().forward(tokens)

    plan, routes = planned(ALL), {ALL.digest: ALL}
    with torch.device("meta"):
        model = Twofold(context=8, vocabulary=257, blocks=2, width=16, heads=2)
    size = model_size(model, None, layer_groups(model), plan, routes)
    whole = size_of(ALL)
    assert size.flops is not None
    assert whole.flops is not None
    # 20 rows, 2 blocks, forward and twice as much backward.
    assert whole.flops - size.flops == 20 * 2 * 3 * 4 * 8 * 8 * 16
    assert (size.attention, whole.attention) == (False, True)
    assert "FLOPs without attention (1.00" in size.text
    assert "attention" not in whole.text


@pytest.mark.parametrize(("shards", "dtype"), [(1, torch.float32), (4, torch.bfloat16)])
def test_an_average_costs_what_the_run_s_own_holds(shards: int, dtype: torch.dtype) -> None:
    model = gpt().to(dtype)
    model.head.weight.requires_grad_(False)
    average = WeightAverage(model, Ema())
    base = dict(model.named_parameters())
    held = sum(
        average.tensors(base)[name].nbytes for name, each in base.items() if each.requires_grad
    )
    plan, routes = planned(ALL), {ALL.digest: ALL}
    size, without = (
        model_size(model, None, layer_groups(model), plan, routes, shards=shards, averaged=averaged)
        for averaged in (True, False)
    )
    assert size.average_bytes == -(-held // shards)
    assert size.rank_bytes - without.rank_bytes == size.average_bytes
    assert size.to_json()["bytesPerRank"]["average"] == size.average_bytes


def test_a_stream_ends_with_its_data_and_tombstones_are_not_read() -> None:
    plan = planned(ALL, UPPER)
    routes = {r.digest: r for r in (ALL, UPPER)}
    model = gpt()
    short = plan.model_copy(update={"max_steps": 10_000})
    groups = layer_groups(model)
    assert model_size(model, None, groups, short, routes).tokens == 2 * 1000 * 8
    without = model_size(model, None, groups, plan.without("c1"), routes)
    assert without.tokens == STEPS * 2 * 8


def test_rows_of_images_state_no_flops() -> None:
    size = size_of(ALL, text=False)
    assert size.flops is size.ratio is None
    assert "FLOPs" not in size.text


def test_a_stream_without_rows_adds_no_tokens() -> None:
    """A supplier of empty records, or of one that the reserve takes."""
    assert size_of(ALL, UPPER, rows=0).tokens == size_of(ALL).tokens == STEPS * 2 * 8


def test_the_line_reads_well() -> None:
    size = ModelSize(
        steps=300,
        parameters=812_345,
        trainable=812_345,
        weight_bytes=3_249_380,
        gradient_bytes=3_249_380,
        optimizer_bytes=6_498_760,
        average_bytes=0,
        tokens=2_508_800,
        flops=1.2228e13,
        attention=True,
        ratio=0.8391,
    )
    assert size.text == (
        "812 k parameters, 13 MB a rank · 2.5 M tokens · 1.2e13 FLOPs (0.84 of ungoverned)"
    )


def test_the_time_left_is_that_of_the_steps_after_the_first() -> None:
    now = 100.0
    left = TimeLeft(lambda: now)
    assert left.after(1, 101) is None
    now += 4
    assert left.after(3, 101) is None  # too early to say
    now += 16
    assert left.after(11, 101) == pytest.approx(180.0)
    assert left.after(0, 101) is None  # rolled back
    assert [hours(s) for s in (12, 180, 12_600)] == ["12 s", "3 min", "3.5 h"]
