"""Sliced backward: what each row may train equals an oracle that takes rows one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from govray.engine.gradients import sliced_pass as sliced_module
from govray.engine.gradients.layer_coverage import uncovered
from govray.engine.gradients.row_weights import RowWeights
from govray.engine.gradients.sliced_pass import sliced
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.errors import Refused, UsageError
from tests.support.table import each_row

hf_conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
llama_norm = pytest.importorskip("transformers.models.llama.modeling_llama").LlamaRMSNorm

EXACT = {"rtol": 1e-11, "atol": 1e-11}


def nothing(rows: int, *, flows: bool = True) -> RowWeights:
    return RowWeights((), ((0, rows),) if flows else ())


def everything(rows: int) -> RowWeights:
    return RowWeights(((0, rows, 1.0),), ((0, rows),))


LAYERS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "linear without middle": (lambda: nn.Linear(6, 4), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (2, 3, 6)),
    "hugging face conv1d": (lambda: hf_conv1d(4, 6), (3, 6)),
    "layer norm": (lambda: nn.LayerNorm(6), (3, 6)),
    "layer norm without bias": (lambda: nn.LayerNorm((3, 6), bias=False), (2, 3, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (3, 6)),
    "hugging face rms norm": (lambda: llama_norm(6), (3, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (4, 5)),
    "conv1d same": (lambda: nn.Conv1d(4, 6, 2, padding="same"), (4, 5)),
    "conv2d strided, grouped": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=1, groups=2, bias=False),
        (4, 5, 6),
    ),
    "conv2d circular": (
        lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"),
        (4, 4, 4),
    ),
    "conv3d valid": (lambda: nn.Conv3d(2, 3, 2, padding="valid"), (2, 3, 3, 3)),
    "embedding": (lambda: nn.Embedding(5, 4), (3,)),
    "embedding with padding": (lambda: nn.Embedding(5, 4, padding_idx=2), (3, 2)),
}


def layer_and_input(name: str, rows: int, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    build, shape = LAYERS[name]
    layer = build().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    if isinstance(layer, nn.Embedding):
        return layer, torch.randint(5, (rows, *shape))
    return layer, torch.randn(rows, *shape, dtype=torch.float64, requires_grad=True)


def gradients(output: Tensor, sources: Mapping[str, Tensor], grad: Tensor) -> dict[str, Tensor]:
    given = torch.autograd.grad(output, list(sources.values()), grad, allow_unused=True)
    return dict(zip(sources, given, strict=True))


def one_row_at_a_time(
    layer: nn.Module, inputs: Tensor, grad: Tensor, weights: Mapping[str, list[float]]
) -> tuple[dict[str, Tensor | None], list[Tensor | None]]:
    """Each parameter's weighted sum over rows, and each row's input gradient."""
    total: dict[str, Tensor | None] = dict.fromkeys(weights)
    passed = []
    for row in range(len(inputs)):
        x = inputs[row : row + 1].detach()
        x.requires_grad_(x.is_floating_point())
        sources = dict(layer.named_parameters())
        if x.requires_grad:
            sources["input"] = x
        found = gradients(layer(x), sources, grad[row : row + 1])
        passed.append(found.get("input"))
        for name, each in weights.items():
            if each[row]:
                scaled = found[name] * each[row]
                total[name] = scaled if total[name] is None else total[name] + scaled
    return total, passed


def check_layer(name: str, rows: int, weights: list[list[float]], flow: list[bool]) -> None:
    layer, inputs = layer_and_input(name, rows)
    by_name = {n: weights[i] for i, (n, _) in enumerate(layer.named_parameters())}
    permitted = {n: RowWeights.of(each, flow) for n, each in by_name.items()}
    plain = layer(inputs).detach()
    grad = torch.randn_like(plain)
    expected, passed = one_row_at_a_time(layer, inputs, grad, by_name)

    sources = dict(layer.named_parameters())
    if inputs.requires_grad:
        sources["input"] = inputs
    with sliced(layer, rows, permitted):
        output = layer(inputs)
        assert torch.equal(output, plain)
        found = gradients(output, sources, grad)

    for parameter, total in expected.items():
        if total is None:
            assert found[parameter] is None
        else:
            torch.testing.assert_close(found[parameter], total, **EXACT)
    if inputs.requires_grad and any(flow):
        for row in range(rows):
            if flow[row]:
                torch.testing.assert_close(found["input"][row : row + 1], passed[row], **EXACT)
            elif not all(all(each) for each in by_name.values()):
                assert not found["input"][row].any()


@each_row("name", LAYERS)
def test_every_kind_of_layer(name):
    check_layer(
        name,
        5,
        [[0.0, 0.5, 0.5, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 1.0]],
        [True, True, False, False, True],
    )


@pytest.mark.parametrize("name", [*LAYERS][:2])
def test_the_oracle_sees_rows_shifted_by_one(name, monkeypatch):
    """The control: every slice of the backward one row further down."""
    cut = sliced_module.layer_rows

    def shifted(named, flow):
        return tuple(replace(p, start=p.start - 1, stop=p.stop - 1) for p in cut(named, flow))

    monkeypatch.setattr(sliced_module, "layer_rows", shifted)
    with pytest.raises(AssertionError):
        check_layer(
            name, 4, [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]], [False, True, True, True]
        )


ORDER = ("embedding", "block.0", "block.1", "block.2", "final_norm", "head")


def transformer(tied: bool = False, seed: int = 3) -> GPT:
    torch.manual_seed(seed)
    model = GPT(3, 8, 5, 11, tied=tied, heads=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def batch_of(rows: int) -> dict[str, Tensor]:
    drawn = torch.randint(11, (rows, 6), generator=torch.Generator().manual_seed(rows))
    return {"tokens": drawn[:, :-1], "targets": drawn[:, 1:]}


def group_of(name: str) -> str:
    first, second = name.split(".")[:2]
    return f"block.{second}" if first == "blocks" else first


def permissions(model: nn.Module, weights: Mapping[str, list[float]]) -> dict[str, RowWeights]:
    """Per-row weights of each layer group → rows of each parameter, under all its names."""
    permitted = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        group = group_of(name)
        below = ORDER[: ORDER.index(group)]
        # What comes first in a block passes a gradient on to what is below the block.
        if group.startswith("block.") and ".attention_norm." not in name:
            below = (*below, group)
        flow = [any(row) for row in zip(*(weights[g] for g in below), strict=True)]
        permitted[name] = RowWeights.of(weights[group], flow)
    return permitted


def row_oracle(
    model: nn.Module, batch: Mapping[str, Tensor], weights: Mapping[str, list[float]]
) -> dict[str, Tensor | None]:
    total: dict[str, Tensor | None] = {name: None for name, _ in model.named_parameters()}
    parameters = dict(model.named_parameters())
    for row in range(len(batch["tokens"])):
        alone = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        found = torch.autograd.grad(loss(model, alone).sum(), list(parameters.values()))
        for name, gradient in zip(parameters, found, strict=True):
            if weight := weights[group_of(name)][row]:
                held = total[name]
                total[name] = gradient * weight if held is None else held + gradient * weight
    return total


def backward_sliced(model, batch, permitted, run=loss) -> dict[str, Tensor | None]:
    model.zero_grad()
    with sliced(model, len(batch["tokens"]), permitted):
        run(model, batch).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None]) -> None:
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], gradient, **EXACT, msg=name)


def weights_of(rows: int, **groups: list[float]) -> dict[str, list[float]]:
    """Layer groups (``block_1`` for ``block.1``) → per-row weights; absent ones get none."""
    return {group: groups.get(group.replace(".", "_"), [0.0] * rows) for group in ORDER}


MIDDLE = {
    "embedding": [0.0, 0.0, 1.0, 1.0],
    "block_0": [0.0, 0.0, 1.0, 1.0],
    "block_1": [0.0, 1.0, 0.5, 0.0],
    "block_2": [1.0, 1.0, 0.0, 0.0],
    "head": [1.0, 0.0, 0.0, 1.0],
}
"""Every row trains other layers; no row trains the final norm."""


@given(st.data())
@settings(max_examples=25)
def test_a_transformer_equals_one_row_at_a_time(data):
    rows = data.draw(st.integers(1, 4))
    tied = data.draw(st.booleans())
    each = st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=rows, max_size=rows)
    weights = {group: data.draw(each) for group in ORDER}
    if tied:
        weights["head"] = weights["embedding"]
    model, batch = transformer(tied), batch_of(rows)
    expected = row_oracle(model, batch, weights)
    if all(gradient is None for gradient in expected.values()):
        return
    assert_same(backward_sliced(model, batch, permissions(model, weights)), expected)


def test_the_oracle_sees_a_flow_that_ends_too_early():
    """The control: a lower layer's gradient is lost where a layer above does not pass it on."""
    model, batch = transformer(), batch_of(4)
    weights = weights_of(4, **MIDDLE)
    permitted = permissions(model, weights)
    for name in ("blocks.2.mlp.down.weight", "blocks.2.attention.out.weight"):
        permitted[name] = replace(permitted[name], flow=())
    with pytest.raises(AssertionError):
        assert_same(backward_sliced(model, batch, permitted), row_oracle(model, batch, weights))


@each_row("tied", [False, True])
@each_row("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_allowing_everything_is_plain_training_bit_for_bit(tied, dtype):
    model, batch = transformer(tied).to(dtype), batch_of(6)
    loss(model, batch).sum().backward()
    plain = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = backward_sliced(model, batch, {name: everything(6) for name in plain})
    assert all(torch.equal(found[name], gradient) for name, gradient in plain.items())


def test_losses_are_those_of_the_plain_model_whatever_the_rows_may_do():
    model, batch = transformer().float(), batch_of(4)
    plain = loss(model, batch)
    with sliced(model, 4, permissions(model, weights_of(4, **MIDDLE))):
        assert torch.equal(loss(model, batch), plain)


def test_autocast():
    """Losses as plain under autocast; gradients as plain autograd's of the same rows."""
    model, batch = transformer().float(), batch_of(4)
    weights = weights_of(4, **{group.replace(".", "_"): [0.0, 0.0, 1.0, 1.0] for group in ORDER})

    def run(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    losses = run(model, batch)
    assert losses.dtype == torch.float32
    with sliced(model, 4, permissions(model, weights)):
        assert torch.equal(run(model, batch), losses)
    model.zero_grad()
    losses[2:].sum().backward()
    plain = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, gradient in backward_sliced(model, batch, permissions(model, weights), run).items():
        # One rounding to bfloat16, of the whole tensor.
        assert (gradient - plain[name]).norm() <= 2**-8 * plain[name].norm(), name


def test_adapters_work_beside_sliced_layers():
    """Their hooks add to the output: base layers stay covered, adapter tensors learn."""
    model, batch = transformer(), batch_of(4)
    adapters = Adapters(model, {"notes": 2}, seed=0)
    assert uncovered(model) == ()
    tensors = dict(adapters.named_parameters())
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.normal_(std=0.4)
    weights = weights_of(4, **MIDDLE)
    with adapters.active("notes"):
        expected = row_oracle(model, batch, weights)
        theirs = torch.autograd.grad(loss(model, batch).sum(), list(tensors.values()))
        permitted = permissions(model, weights)
        # The adapters learn from all rows, so every row's gradient has to go all the way down.
        permitted = {n: replace(p, flow=((0, 4),)) for n, p in permitted.items()}
        assert_same(backward_sliced(model, batch, permitted), expected)
    for tensor, gradient in zip(tensors.values(), theirs, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, **EXACT)


def on_a_ddp_rank() -> dict[str, Tensor]:
    """Rank 0 has two rows that train everything; otherwise rows train the upper layers."""
    rank = dist.get_rank()
    lower = [0.0, 0.0, 1.0, 1.0] if rank == 0 else [0.0] * 4
    weights = {g: [1.0] * 4 for g in ORDER} | {"embedding": lower, "block.0": lower}
    model, batch = transformer(), batch_of(4)
    batch = {name: (tensor + rank) % 11 for name, tensor in batch.items()}
    replica = DistributedDataParallel(model, static_graph=True)
    for _ in range(2):  # DDP learns the graph in the first step
        model.zero_grad()
        with sliced(model, 4, permissions(model, weights)):
            loss(replica, batch).sum().backward()
    expected = row_oracle(model, batch, weights)
    for name, parameter in model.named_parameters():
        total = torch.zeros_like(parameter) if expected[name] is None else expected[name]
        dist.all_reduce(total)
        torch.testing.assert_close(parameter.grad * dist.get_world_size(), total, **EXACT)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_ddp_hosts_ranks_with_no_permitted_row(two_ranks):
    first, second = two_ranks.run(on_a_ddp_rank)
    assert all(torch.equal(first[name], second[name]) for name in first)


def saved_by(layer: nn.Module, inputs: Tensor, permitted: Mapping[str, RowWeights]) -> list[Tensor]:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with (
        sliced(layer, len(inputs), permitted),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        layer(inputs)
    return saved


def test_only_what_a_gradient_reads_is_saved_and_nothing_is_copied():
    layer = nn.Linear(6, 4)
    inputs = torch.randn(4, 6, requires_grad=True)

    def memory(weights: RowWeights) -> set[int]:
        kept = saved_by(layer, inputs, {"weight": weights, "bias": weights})
        return {tensor.untyped_storage().data_ptr() for tensor in kept}

    weight, activations = (t.untyped_storage().data_ptr() for t in (layer.weight, inputs))
    assert memory(nothing(4, flows=False)) == set()
    assert memory(nothing(4)) == {weight}
    assert memory(RowWeights(((1, 3, 1.0),), ())) == {activations}
    assert memory(RowWeights(((1, 3, 1.0),), ((0, 1),))) == {weight, activations}


def test_work_that_no_row_permits_is_not_done():
    """Below the lowest permitted layer only the residual stream still carries gradients."""
    model, batch = transformer(), batch_of(4)
    passed: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            # Autograd calls hooks of the tensors that no gradient reached, too.
            args[0].register_hook(lambda g: None if g is None else passed.append(name))

        return hook

    for block in range(3):
        for name in (f"{block}.attention", f"{block}.mlp"):
            model.get_submodule(f"blocks.{name}").register_forward_pre_hook(watch(name))
    backward_sliced(model, batch, permissions(model, weights_of(4, block_2=[0, 0, 1.0, 1.0])))
    assert passed == ["2.mlp", "2.attention"]
    del passed[:]
    backward_sliced(model, batch, permissions(model, weights_of(4, head=[1.0] * 4)))
    assert passed == []


def test_layers_are_restored_after_an_error():
    model = transformer()
    forwards = {module: type(module).forward for module in model.modules()}
    with (
        pytest.raises(ZeroDivisionError),
        sliced(model, 4, {name: nothing(4) for name, _ in model.named_parameters()}),
    ):
        raise ZeroDivisionError
    for module, forward in forwards.items():
        assert module.forward.__func__ is forward
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_model_may_write_into_what_a_layer_returns():
    """As ``nn.ReLU(inplace=True)`` and ``hidden += x`` do."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)).double()
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    lower = RowWeights.of([1.0, 0.0, 0.0], [True] * 3)
    permitted = {name: lower for name, _ in layers.named_parameters()}
    with sliced(layers, 3, permitted):
        hidden = layers(x)
        hidden += x
        hidden.square().sum().backward()
    found = [p.grad for p in layers.parameters()]
    alone = (layers(x[:1]) + x[:1]).square().sum()
    for ours, theirs in zip(found, torch.autograd.grad(alone, [*layers.parameters()]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class RawUse(nn.Module):
    """Reads a layer's tensor, beside calling the layer or not."""

    def __init__(self, call: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.held = [self.layer.weight]  # out of reach of attributes
        self.call = call

    def forward(self, inputs: Tensor) -> Tensor:
        raw = F.linear(inputs, self.held[0])
        return raw + self.layer(inputs) if self.call else raw


@pytest.mark.parametrize("call", [False, True])
def test_a_restricted_tensor_that_is_used_past_its_layer_is_refused(call):
    model = RawUse(call)
    with (
        sliced(model, 4, {"layer.weight": RowWeights(((0, 2, 1.0),), ())}),
        pytest.raises(Refused, match=r"parameter layer\.weight is used outside its layer"),
    ):
        model(torch.randn(4, 4)).sum().backward()


def test_without_the_check_such_a_tensor_learns_from_all_rows(monkeypatch):
    monkeypatch.setattr(sliced_module._Use, "check", lambda self, gradient: None)
    model = RawUse(call=True)
    with sliced(model, 4, {"layer.weight": RowWeights(((0, 2, 1.0),), ())}):
        model(torch.tensor([[0.0] * 4] * 2 + [[1.0] * 4] * 2)).sum().backward()
    assert model.layer.weight.grad.any()


def test_every_parameter_needs_an_entry_and_every_entry_a_parameter():
    layer = nn.Linear(4, 4)
    with (
        pytest.raises(Refused, match="bias: nothing says which rows"),
        sliced(layer, 4, {"weight": everything(4)}),
    ):
        pass
    layer.bias.requires_grad_(False)
    with sliced(layer, 4, {"weight": RowWeights(((0, 2, 1.0),), ())}):
        layer(torch.ones(4, 4)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((4, 4), 2.0))
    with (
        pytest.raises(Refused, match="rows are given for wieght, which the model lacks"),
        sliced(layer, 4, {"weight": everything(4), "wieght": everything(4)}),
    ):
        pass
    with (
        pytest.raises(UsageError, match="weight: rows up to 5 in a pass of 4"),
        sliced(nn.Linear(4, 4, bias=False), 4, {"weight": everything(5)}),
    ):
        pass


def test_a_tied_tensor_has_one_permission():
    model = transformer(tied=True)
    permitted = {name: everything(4) for name, _ in model.named_parameters()}
    with (
        pytest.raises(Refused, match=r"head\.weight: its names give this tied tensor different"),
        sliced(model, 4, permitted | {"head.weight": nothing(4)}),
    ):
        pass


class Scaled(nn.Module):
    """A layer that no Function knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 4, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs * self.scale)


def test_an_unknown_layer_learns_from_all_rows_or_none():
    model, inputs = Scaled(), torch.randn(4, 4)
    part = RowWeights(((0, 2, 1.0),), ((0, 4),))
    with sliced(model, 4, {"scale": everything(4), "linear.weight": part}):
        model(inputs).sum().backward()
    assert model.scale.grad is not None
    model.scale.grad = None
    with sliced(model, 4, {"scale": nothing(4), "linear.weight": part}):
        model(inputs).sum().backward()
    assert model.scale.grad is None
    assert model.scale.requires_grad
    with (
        pytest.raises(Refused, match="Scaled: only some rows may train scale of this Scaled"),
        sliced(model, 4, {"scale": part, "linear.weight": part}),
    ):
        pass
