"""Slopes along a direction are products with gradients, as autograd has them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.influence.loss_slopes import loss_slopes
from govray.engine.influence.output_gradient import output_gradient
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT
from govray.errors import Refused

ADAPTER = "acme"
few = settings(max_examples=8)


def models() -> tuple[GPT, Adapters]:
    torch.manual_seed(5)
    model = GPT(blocks=2, width=8, context=8, vocabulary=11)
    adapters = Adapters(model, {ADAPTER: 2, "other": 2}, seed=0)
    with torch.no_grad():
        for _, parameter in adapters.named_parameters():
            parameter.normal_(std=0.3)
    model.double()
    for _, parameter in adapters.named_parameters():
        parameter.data = parameter.data.double()
    return model, adapters


MODEL, ADAPTERS = models()
ROWS = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 1, 1, 2, 3, 4]]


def named() -> dict[str, nn.Parameter]:
    own = dict(ADAPTERS.named_parameters())
    return dict(MODEL.named_parameters()) | {n: p for n, p in own.items() if ADAPTER in n}


def direction(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for name, p in named().items()
    }


def slopes(of: Mapping[str, Tensor], rows: list[list[int]] = ROWS) -> list[Tensor]:
    return loss_slopes(MODEL, ADAPTERS, of, rows, adapter=ADAPTER)


def by_autograd(of: Mapping[str, Tensor], row: list[int]) -> Tensor:
    found = []
    for place in range(1, len(row)):
        with ADAPTERS.active(ADAPTER):
            logits = MODEL(torch.tensor([row[:-1]]))[0, place - 1]
            loss = F.cross_entropy(logits, torch.tensor(row[place]))
        gradients = torch.autograd.grad(loss, list(named().values()), allow_unused=True)
        found.append(
            sum(
                float((gradient * of[name]).sum())
                for name, gradient in zip(named(), gradients, strict=True)
                if gradient is not None
            )
        )
    return torch.tensor(found, dtype=torch.float64)


def test_every_target_s_slope_is_the_product_with_its_gradient() -> None:
    along = direction(1)
    for row, found in zip(ROWS, slopes(along), strict=True):
        assert found.dtype == torch.float64
        assert torch.allclose(found, by_autograd(along, row), rtol=1e-6, atol=1e-7)


@few
@given(st.integers(0, 99), st.integers(0, 99), st.floats(-3, 3), st.floats(-3, 3))
def test_slopes_are_linear_in_the_direction(one: int, other: int, a: float, b: float) -> None:
    first, second = direction(one), direction(other)
    both = {name: a * first[name] + b * second[name] for name in first}
    expected = torch.cat(
        [a * x + b * y for x, y in zip(slopes(first), slopes(second), strict=True)]
    )
    assert torch.allclose(torch.cat(slopes(both)), expected, rtol=1e-6, atol=1e-5)


@few
@given(st.permutations(ROWS))
def test_the_order_of_rows_does_not_matter(rows: list[list[int]]) -> None:
    known = {tuple(row): found for row, found in zip(ROWS, slopes(direction(2)), strict=True)}
    for row, found in zip(rows, slopes(direction(2), rows), strict=True):
        assert torch.allclose(found, known[tuple(row)], rtol=1e-6, atol=1e-9)


def test_nothing_moves_along_no_direction_and_weights_are_put_back() -> None:
    before = {name: p.detach().clone() for name, p in named().items()}
    assert all(not each.any() for each in slopes({}))
    assert slopes({})[0].shape == (len(ROWS[0]) - 1,)
    slopes(direction(3))
    assert all(torch.equal(p, before[name]) for name, p in named().items())


def test_weights_are_put_back_whatever_the_forward_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: p.detach().clone() for name, p in named().items()}

    def broken(*args: object) -> Tensor:
        raise Refused("no forward")

    monkeypatch.setattr(MODEL, "forward", broken)
    with pytest.raises(Refused):
        slopes(direction(4))
    assert all(torch.equal(p, before[name]) for name, p in named().items())


def test_an_output_s_gradient_has_what_it_is_read_with_alone() -> None:
    loss, base = output_gradient(MODEL, ADAPTERS, ROWS[0], 2)
    assert base.keys() <= dict(MODEL.named_parameters()).keys()
    _, adapted = output_gradient(MODEL, ADAPTERS, ROWS[0], 2, adapter=ADAPTER)
    assert {name for name in adapted if "adapter:" in name} == set(
        ADAPTERS.groups[f"adapter:{ADAPTER}"]
    )
    along = {name: gradient / 3 for name, gradient in base.items()}
    [slope] = loss_slopes(MODEL, ADAPTERS, along, [ROWS[0]])
    squares = sum(float((g * along[name]).sum()) for name, g in base.items())
    assert float(slope[1:].mean()) == pytest.approx(squares, rel=1e-6)
    with torch.no_grad():
        logits = MODEL(torch.tensor([ROWS[0][:-1]]))[0, 1:]
    assert loss == pytest.approx(float(F.cross_entropy(logits, torch.tensor(ROWS[0][2:]))))


def test_a_frozen_parameter_has_no_gradient() -> None:
    weight = MODEL.head.weight
    weight.requires_grad_(False)
    try:
        assert "head.weight" not in output_gradient(MODEL, ADAPTERS, ROWS[0], 2)[1]
    finally:
        weight.requires_grad_(True)


@pytest.mark.parametrize("start", [0, 5])
def test_an_output_has_a_token_and_something_before_it(start: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        output_gradient(MODEL, ADAPTERS, ROWS[0], start)
