"""Gradient-norm share: each piece's norm is that of the gradient of its rows alone.

The oracle takes ``torch.autograd.grad`` of each piece's loss on the plain model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from govray.engine import accounting as accounting_module
from govray.engine.accounting import Accounting, Piece
from govray.engine.adapters import Adapters
from govray.engine.gpt import GPT, loss
from govray.engine.layers import layer_groups
from govray.engine.sliced import RowWeights, sliced
from govray.errors import UsageError

VOCABULARY = 11


class Net(nn.Module):
    """Every parameter in a covered layer that is called on rows."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
            for _ in range(2)
        )
        self.final_norm = nn.RMSNorm(8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.final_norm(hidden))


def double(model: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def rows_of(count: int, seed: int = 1) -> dict[str, Tensor]:
    drawn = torch.randint(
        VOCABULARY, (count, 6), generator=torch.Generator().manual_seed(seed)
    )
    return {"tokens": drawn[:, :-1], "targets": drawn[:, 1:]}


def groups_by_name(model: nn.Module) -> dict[str, str]:
    return {name: group for group, names in layer_groups(model).items() for name in names}


def everywhere(model: nn.Module, weight: float = 1.0) -> dict[str, float]:
    return {name: weight for name, _ in model.named_parameters()}


def oracle(
    parameters: Mapping[str, Tensor],
    model: nn.Module,
    rows: Mapping[str, Tensor],
    pieces: Sequence[Piece],
    group_of: Mapping[str, str],
) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = {}
    for piece in pieces:
        part = {name: tensor[piece.start : piece.stop] for name, tensor in rows.items()}
        found = torch.autograd.grad(
            loss(model, part).sum(), list(parameters.values()), allow_unused=True
        )
        for name, gradient in zip(parameters, found, strict=True):
            if name in piece.weights and gradient is not None:
                key = piece.corpus, group_of[name]
                square = float((piece.weights[name] * gradient).square().sum())
                sums[key] = sums.get(key, 0.0) + square
    return sums


def close(measured: Mapping, expected: Mapping) -> None:
    assert measured.keys() == expected.keys()
    for key, value in expected.items():
        assert measured[key] == pytest.approx(value, rel=1e-10), key


def measure(model, rows, pieces, *, accounting=None) -> dict[tuple[str, str], float]:
    accounting = accounting or Accounting(model, groups_by_name(model))
    with accounting.measuring(pieces):
        loss(model, rows).sum().backward()
    return accounting.take()


@pytest.mark.parametrize("tied", [False, True])
def test_pieces_equal_their_own_gradients(tied):
    model = double(Net(tied))
    rows = rows_of(6)
    pieces = [
        Piece("a", 0, 2, everywhere(model)),
        Piece("b", 2, 3, everywhere(model)),
        Piece("a", 3, 6, everywhere(model)),
    ]
    expected = oracle(dict(model.named_parameters()), model, rows, pieces, groups_by_name(model))
    assert len({group for _, group in expected}) == len(layer_groups(model))
    close(measure(model, rows, pieces), expected)


def test_the_gpt_but_for_its_positions():
    model = double(GPT(2, 8, 5, VOCABULARY, heads=2))
    rows = rows_of(5)
    group_of = groups_by_name(model)
    pieces = [Piece("a", 0, 2, everywhere(model)), Piece("b", 2, 5, everywhere(model))]
    expected = oracle(dict(model.named_parameters()), model, rows, pieces, group_of)
    got = measure(model, rows, pieces)
    print(sorted({k[1] for k in got}))
    for key in got: assert got[key]==pytest.approx(expected[key], rel=1e-10)
