"""Why gradients are compared and not weights: AdamW makes a full step out of rounding."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows

STEPS, RATE, WIDTH, VOCABULARY, LENGTH, ROWS = 5, 1e-3, 16, 11, 8, 6
KEYS = "blocks.0.keys.bias"


class Block(nn.Module):
    """Attention whose keys have a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(WIDTH, WIDTH)
        self.keys = nn.Linear(WIDTH, WIDTH)
        self.values = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, tokens, width) → the same shape."""
        q, k, v = self.queries(hidden), self.keys(hidden), self.values(hidden)
        attended: Tensor = hidden + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended


class Small(nn.Module):
    """A language model of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, tokens) → logits (rows, tokens, vocabulary)."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def losses(model: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
    logits = model(tensors["tokens"])
    return F.cross_entropy(logits.transpose(1, 2), tensors["targets"], reduction="none")


def test_a_weight_whose_exact_gradient_is_zero_moves_by_rounding_and_no_gradient_is_far_off() -> (
    None
):
    torch.manual_seed(5)
    exact = Small().double()
    rounded = copy.deepcopy(exact).float()
    oracle = torch.optim.AdamW(exact.parameters(), lr=RATE)
    run = governed(
        rounded, torch.optim.AdamW(rounded.parameters(), lr=RATE), [route := allow_all(rounded)]
    )
    far_gradient = 0.0
    for step in range(STEPS):
        rows = token_rows(ROWS, LENGTH, VOCABULARY, 3, step)
        oracle.zero_grad()
        losses(exact, rows).mean().backward()  # type: ignore[no-untyped-call]
        apart = copy.deepcopy(exact).float()
        losses(apart, rows).mean().backward()  # type: ignore[no-untyped-call]
        largest = max(float(p.grad.abs().max()) for p in exact.parameters() if p.grad is not None)
        for ours, theirs in zip(apart.parameters(), exact.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            error = float((ours.grad - theirs.grad).abs().max()) / largest
            far_gradient = max(far_gradient, error)
        oracle.step()
        run(step_batch(step, [micro_batch(route, rows)]), losses)
    named = dict(exact.named_parameters())
    rounded.requires_grad_(False)
    exact.requires_grad_(False)
    misses = {
        name: float((ours.double() - named[name]).abs().max())
        for name, ours in rounded.named_parameters()
    }
    others = max(miss for name, miss in misses.items() if name != KEYS)
    print(f"keys' bias {misses[KEYS]:.1e}, others {others:.1e}, gradients {far_gradient:.1e}")
    assert max(misses, key=lambda name: misses[name]) == KEYS
    assert misses[KEYS] > 1e-5 > others
    assert misses[KEYS] <= 2 * STEPS * RATE, "no more than AdamW's steps"
    assert far_gradient < 1e-6
