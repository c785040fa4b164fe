"""The counterfactual gap: what a model's loss on a corpus's rows owes to training on them.

Two runs, one trained on the corpus and one not, score the same rows. The gap is the mean difference
of losses, without − with, in nats a token. It is positive if the trained model predicts the rows
better. The interval is a paired bootstrap over rows. It covers the choice of rows, not the runs'
seeds.

The gap alone does not tell memorizing from learning, since both lower the loss on trained rows. The
same gap on reserve rows says how much of it carries over.

Source: Zhang et al. 2023, "Counterfactual Memorization in Neural Language Models".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Gap:
    """``mean`` over ``rows`` and its bootstrap interval [``low``, ``high``], nats a token."""

    mean: float
    low: float
    high: float
    rows: int


def gap(with_corpus: Tensor, without: Tensor, *, seed: int) -> Gap:
    """The gap between two models' losses on the same rows. ``with_corpus``, ``without``: mean loss
    of each row, nats a token: (rows,), any floating dtype and device."""
    if with_corpus.shape != without.shape or with_corpus.numel() == 0:
        raise ValueError("both models score the same rows, at least one")
    differences = (without.double() - with_corpus.double()).flatten().cpu()
    generator = torch.Generator().manual_seed(seed)
    n = differences.numel()
    drawn = torch.randint(n, (DRAWS, n), generator=generator)
    means = differences[drawn].mean(dim=1)
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Gap(float(differences.mean()), low, high, n)
