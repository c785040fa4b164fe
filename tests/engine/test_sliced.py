"""Sliced backward: what each row may train equals an oracle that takes rows one at a time.

The oracle knows nothing of slices: it runs the plain model on one row, takes
torch's gradients, and adds them up by that row's weight. Layers, shapes, row
permissions, which rows pass a gradient on, and dtypes are drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from govray.engine import sliced as sliced_module
from govray.engine.adapters import Adapters
from govray.engine.gpt import GPT, loss
from govray.engine.sliced import RowWeights, parameter_gradients, sliced, uncovered
from govray.errors import Refused, UsageError

hf_conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D

EXACT = {"rtol": 1e-11, "atol": 1e-11}


def nothing(rows: int, *, flows: bool = True) -> RowWeights:
    return RowWeights((), ((0, rows),) if flows else ())


def everything(rows: int) -> RowWeights:
    return RowWeights(((0, rows, 1.0),), ((0, rows),))


# One layer.

LAYERS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "linear without middle": (lambda: nn.Linear(6, 4), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (2, 3, 6)),
    "hugging face conv1d": (lambda: hf_conv1d(4, 6), (3, 6)),
    "layer norm": (lambda: nn.LayerNorm(6), (3, 6)),
    "layer norm without bias": (lambda: nn.LayerNorm((3, 6), bias=False), (2, 3, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (3, 6)),
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


@st.composite
def layer_cases(draw: st.DrawFn) -> tuple[str, int, list[list[float]], list[bool]]:
    rows = draw(st.integers(1, 6))
    weight = st.sampled_from([0.0, 0.0, 1.0, 1.0, 0.25])
    per_row = st.lists(weight, min_size=rows, max_size=rows)
    return (
        draw(st.sampled_from(sorted(LAYERS))),
        rows,
        [draw(per_row), draw(per_row)],
        draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
    )


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


@given(layer_cases())
@settings(max_examples=250)
@example(("linear", 4, [[0.0, 1.0, 1.0, 0.5], [1.0, 0.0, 0.0, 0.0]], [True, False, False, True]))
def test_a_layer_equals_one_row_at_a_time(case):
    check_layer(*case)


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name):
    check_layer(
        name,
        5,
        [[0.0, 0.5, 0.5, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0, 1.0]],
        [True, True, False, False, True],
    )


@pytest.mark.parametrize("name", LAYERS)
def test_the_oracle_sees_rows_shifted_by_one(name, monkeypatch):
    """The control: every slice of the backward one row further down."""
    cut = sliced_module._pieces

    def shifted(named, flow):
        return tuple(replace(p, start=p.start - 1, stop=p.stop - 1) for p in cut(named, flow))

    monkeypatch.setattr(sliced_module, "_pieces", shifted)
    with pytest.raises(AssertionError):
        check_layer(
            name, 4, [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]], [False, True, True, True]
        )
