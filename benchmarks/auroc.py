"""AUROC: how well a score ranks memorized items above others.

Source: Fawcett 2006, "An introduction to ROC analysis" (the probability that a random
positive is ranked above a random negative; ties count half).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def auroc(scores: Tensor, positive: Sequence[bool]) -> float | None:
    """Area under the ROC curve.

    Args:
        scores: Higher where a positive is expected, (items,).
        positive: Which items are.

    Returns:
        A number in [0, 1], or None if there is no positive or no negative.
    """
    labels = torch.tensor(positive, dtype=torch.bool)
    ours, theirs = scores[labels], scores[~labels]
    if not len(ours) or not len(theirs):
        return None
    above = (ours[:, None] > theirs).double() + (ours[:, None] == theirs).double() / 2
    return float(above.mean())


def grouped(scores: Tensor, size: int, groups: int, generator: torch.Generator) -> Tensor:
    """Means of random groups of distinct items: (items,) → (groups,)."""
    picked = torch.rand(groups, len(scores), generator=generator).argsort(1)[:, :size]
    return scores[picked].mean(1)
