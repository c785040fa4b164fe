"""Gradient-norm share: each piece's norm is that of the gradient of its rows alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from govray.engine.gradients import norm_accounting as accounting_module
from govray.engine.gradients.norm_accounting import Accounting, Piece
from govray.engine.gradients.row_weights import RowWeights
from govray.engine.gradients.sliced_pass import sliced
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.model.layer_groups import layer_groups
from tests.support.table import each_row

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
    drawn = torch.randint(VOCABULARY, (count, 6), generator=torch.Generator().manual_seed(seed))
    return {"tokens": drawn[:, :-1], "targets": drawn[:, 1:]}


def numbers(accounting: Accounting) -> dict[tuple[str, str], float]:
    """What was measured; NaN says that it was not."""
    squares = {key: float(square) for key, square in accounting.squares().items()}
    return {key: square for key, square in squares.items() if not math.isnan(square)}


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
    return numbers(accounting)


def cut(model: nn.Module, *lengths: int) -> list[Piece]:
    """Pieces of these lengths, of corpora a, b, c, …, that may train everything."""
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    return [
        Piece("abcdef"[index], end - length, end, everywhere(model))
        for index, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]


def expected_of(model: nn.Module, rows: Mapping[str, Tensor], pieces: Sequence[Piece]):
    return oracle(dict(model.named_parameters()), model, rows, pieces, groups_by_name(model))


@given(
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    corpora=st.lists(st.sampled_from("ab"), min_size=4, max_size=4),
    weights=st.lists(st.sampled_from([1.0, 0.5]), min_size=4, max_size=4),
    tied=st.booleans(),
)
@settings(max_examples=25)
def test_pieces_equal_their_own_gradients(lengths, corpora, weights, tied):
    model = double(Net(tied))
    pieces = [
        replace(piece, corpus=corpora[index], weights=everywhere(model, weights[index]))
        for index, piece in enumerate(cut(model, *lengths))
    ]
    rows = rows_of(sum(lengths))
    by_row = [weight for weight, n in zip(weights, lengths, strict=False) for _ in range(n)]
    ranges = RowWeights.of(by_row, [True] * len(by_row))
    expected = expected_of(model, rows, pieces)
    assert {group for _, group in expected} == set(layer_groups(model))
    accounting = Accounting(model, groups_by_name(model))
    with sliced(model, len(by_row), dict.fromkeys(everywhere(model), ranges)):
        close(measure(model, rows, pieces, accounting=accounting), expected)


def test_only_what_a_piece_may_train_counts():
    """A sliced pass: corpus b trains the upper block and what follows."""
    model = double(Net())
    rows, group_of = rows_of(4), groups_by_name(model)
    upper = {name: 1.0 for name, group in group_of.items() if group not in ("embedding", "block.0")}
    first, second = cut(model, 1, 3)
    pieces = [first, replace(second, weights=upper)]
    permitted = {
        name: RowWeights(((0, 4 if name in upper else 1, 1.0),), ((0, 4),)) for name in group_of
    }
    expected = expected_of(model, rows, pieces)
    assert ("b", "embedding") not in expected
    for order in (0, 1):
        accounting = Accounting(model, group_of)
        passes = [sliced(model, 4, permitted), accounting.measuring(pieces)]
        with ExitStack() as stack:
            for context in passes[::-1] if order else passes:
                stack.enter_context(context)
            loss(model, rows).sum().backward()
        close(numbers(accounting), expected)


@pytest.mark.parametrize("contested", [False, True])
def test_adapters(contested):
    model = double(Net())
    adapters = Adapters(model, {"notes": 2, "other": 2}, seed=0)
    tensors = dict(adapters.named_parameters())
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.normal_(std=0.4)
    group_of = groups_by_name(model) | {
        name: group for group, names in adapters.groups.items() for name in names
    }
    notes = {name: 1.0 for name in tensors if name.startswith("adapter:notes/")}
    pieces = [replace(p, weights=notes) for p in cut(model, *((2, 2) if contested else (4,)))]
    rows = rows_of(4)
    accounting = Accounting(model, group_of, adapters=adapters)
    with adapters.active("notes"):
        chosen = {name: tensors[name] for name in notes}
        expected = oracle(chosen, model, rows, pieces, group_of)
        with accounting.measuring(pieces):
            loss(model, rows).sum().backward()
    assert {group for _, group in expected} == {"adapter:notes"}
    close(numbers(accounting), expected)


class Checkpointed(nn.Module):
    """Runs each block again in backward."""

    def __init__(self, net: Net, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = net, reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.net.embedding(tokens)
        for block in self.net.blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.net.head(self.net.final_norm(hidden))


@each_row("reentrant", [False, True])
@each_row("tied", [False, True])
def test_activation_checkpointing(reentrant, tied):
    model = double(Net(tied))
    rows, pieces = rows_of(5), cut(model, 2, 3)
    accounting = Accounting(model, groups_by_name(model))
    with accounting.measuring(pieces):
        loss(Checkpointed(model, reentrant), rows).sum().backward()
    close(numbers(accounting), expected_of(model, rows, pieces))


class RawPositions(Net):
    """Adds a position table that it reads as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(5, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.final_norm(hidden))


class SharedPositions(RawPositions):
    """Looks positions up once for all rows."""

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])[None]
        return self.head(self.final_norm(self.embedding(tokens) + self.positions(places)))


class RawHead(RawPositions):
    """Calls its position table on rows, and reads it beside that."""

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        hidden = self.embedding(tokens) + self.positions(places)
        return self.head(self.final_norm(hidden + self.positions.weight[0]))


class FlatHead(RawPositions):
    """Calls its embedding on a flat list of tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens.flatten()).view(*tokens.shape, -1)
        return self.head(self.final_norm(hidden))


class Gain(nn.Module):
    """A layer of unknown kind."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.gain


class Gained(RawPositions):
    """Its embedding has a layer of unknown kind beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Gain()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.final_norm(self.positions(self.embedding(tokens))))


OPAQUE = (RawPositions, SharedPositions, RawHead, FlatHead, Gained)


def opaque_groups(model: nn.Module) -> dict[str, str]:
    """Everything that turns tokens into vectors is one layer group."""
    return {
        name: "embedding" if name.startswith(("embedding", "positions")) else name.split(".")[0]
        for name, _ in model.named_parameters()
    }


@each_row("kind", OPAQUE)
def test_a_group_with_an_unexplained_parameter_is_absent(kind):
    model = double(kind())
    rows, group_of = rows_of(5), opaque_groups(model)
    accounting = Accounting(model, group_of)
    for pieces, absent in ((cut(model, 2, 3), {"embedding"}), (cut(model, 5), set())):
        expected = oracle(dict(model.named_parameters()), model, rows, pieces, group_of)
        taken = measure(model, rows, pieces, accounting=accounting)
        # One piece alone is measured whatever the model does.
        close(taken, {key: value for key, value in expected.items() if key[1] not in absent})
        assert {group for _, group in taken} == {"embedding", "final_norm", "head"} - absent


def test_without_the_check_an_unexplained_parameter_gives_a_wrong_number(monkeypatch):
    monkeypatch.setattr(accounting_module._Tally, "measured", lambda self: torch.tensor(True))
    model = double(RawHead())
    rows, pieces, group_of = rows_of(5), cut(model, 2, 3), opaque_groups(model)
    expected = oracle(dict(model.named_parameters()), model, rows, pieces, group_of)
    taken = measure(model, rows, pieces, accounting=Accounting(model, group_of))
    key = "a", "embedding"
    assert taken[key] != pytest.approx(expected[key], rel=1e-3)


def test_rows_that_trained_more_than_was_said_leave_the_group_absent():
    model = double(Net())
    rows, group_of = rows_of(5), groups_by_name(model)
    first, second = cut(model, 2, 3)
    half = {name: 0.5 if group == "head" else 1.0 for name, group in group_of.items()}
    taken = measure(model, rows, [first, replace(second, weights=half)])
    assert {group for _, group in taken} == set(layer_groups(model)) - {"head"}


def trained(measured: bool) -> list[Tensor]:
    torch.manual_seed(5)
    model = GPT(2, 16, 5, VOCABULARY, tied=True, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    accounting = Accounting(model, groups_by_name(model), every=2)
    mixed = RowWeights(((0, 2, 1.0), (2, 4, 0.5)), ((0, 4),))
    permissions = dict.fromkeys(everywhere(model), mixed)
    a, b = cut(model, 2, 2)
    for step in range(4):
        optimizer.zero_grad()
        sample = measured and accounting.due(step)
        pieces = [a, replace(b, weights=everywhere(model, 0.5))]
        with (
            sliced(model, 4, permissions),
            accounting.measuring(pieces) if sample else nullcontext(),
        ):
            loss(model, rows_of(4, step)).sum().backward()
        optimizer.step()
        assert bool(numbers(accounting)) == sample
    return [parameter.detach() for parameter in model.parameters()]


def test_training_is_bit_for_bit_the_same():
    for plain, observed in zip(trained(False), trained(True), strict=True):
        assert torch.equal(plain, observed)
