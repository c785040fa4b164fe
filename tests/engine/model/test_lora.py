"""A frozen layer and its adapter as one operation: the bits of both one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from govray.engine.model import adapters as module
from govray.engine.model.adapters import Adapters, adapted_linear, fits
from govray.engine.model.gpt import GPT, loss
from tests.support.table import each_row


def gradients(fused: bool, *, autocast: bool = False) -> dict[str, Tensor]:
    """Of an adapter with weights of some size, through a model that doesn't learn."""
    torch.manual_seed(3)
    model = GPT(blocks=2, width=32, context=16, vocabulary=65).requires_grad_(False)
    held = Adapters(model, {"notes": 4}, seed=1)
    parameters = dict(held.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.normal_(std=0.1)
    tokens = torch.randint(65, (3, 17), generator=torch.Generator().manual_seed(5))
    called = []

    def counted(*args):
        called.append(args)
        return adapted_linear(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "adapted_linear", counted)
        if not fused:
            patch.setattr(module, "fits", lambda *_: False)
        with held.active("notes"), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = loss(model, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]})
            losses.sum().backward()
    assert len(called) == (8 if fused and not autocast else 0)
    return {"losses": losses.detach()} | {name: p.grad for name, p in parameters.items()}


def test_one_operation_gives_the_bits_of_two():
    one, two = gradients(fused=True), gradients(fused=False)
    assert all(torch.equal(one[name], two[name]) for name in two)
    assert all(gradient.abs().sum() > 0 for gradient in one.values())


def test_under_autocast_the_two_stay_apart():
    assert all(tensor is not None for tensor in gradients(fused=True, autocast=True).values())


@each_row("bias", [False, True])
@each_row("shape", [(5, 6), (2, 3, 6), (2, 1, 3, 6)])
def test_its_derivatives_are_those_of_its_forward(bias, shape):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=bias).double().requires_grad_(False)
    inputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    a = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def run(inputs, a, b):
        return adapted_linear(layer, inputs, a, b, 2.0)

    torch.testing.assert_close(run(inputs, a, b), layer(inputs) + 2 * inputs @ a.T @ b.T)
    assert torch.autograd.gradcheck(run, (inputs, a, b))


def test_it_fits_linear_layers_that_do_not_learn():
    inputs, a = torch.randn(2, 6), torch.randn(3, 6)
    layer = nn.Linear(6, 4).requires_grad_(False)
    assert fits(layer, inputs, a)
    assert not fits(layer, inputs.double(), a)
    assert not fits(layer, inputs, a.bfloat16())
    assert not fits(layer, inputs[0], a)
    layer.bias.requires_grad_(True)
    assert not fits(layer, inputs, a)


class InPlace(nn.Module):
    """Writes into what its layers return, and has an expert that gets no token."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers[0](x)
        hidden += x
        hidden = self.layers[1](torch.relu_(hidden)).mul_(2.0)
        return hidden.sum() + self.layers[2](x.flatten(0, -2)[:0]).sum()


def test_a_model_may_write_into_what_an_adapted_layer_returns(monkeypatch):
    torch.manual_seed(0)
    model = InPlace().requires_grad_(False)
    held = Adapters(model, {"notes": 2}, seed=1)
    parameters = dict(held.named_parameters())
    for parameter in parameters.values():
        nn.init.normal_(parameter)
    found = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(module, "fits", lambda *_: False)
        with held.active("notes"):
            output = model(torch.arange(24.0).sub(12).div(12).view(2, 2, 6))
            found.append(torch.autograd.grad(output, [*parameters.values()]))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-5)
    assert all(gradient.any() for gradient in found[0][:4])
    assert not any(gradient.any() for gradient in found[0][4:])
