"""The share of members that are found when next to no other row may be called one.

A mean over all thresholds, as AUROC is, hides whether an attack is ever sure.

Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RATE = 1e-3


def true_positive_rate(
    scores: Tensor, positive: Sequence[bool], rate: float = RATE
) -> float | None:
    """The largest share of positives above a threshold that at most ``rate`` of the others pass.

    Args:
        scores: Higher where a positive is expected, (items,).
        positive: Which items are.
        rate: Of the others that may be above the threshold.

    Returns:
        A number in [0, 1]. None without a positive, or with fewer others than ``1 / rate``: then
        the threshold would be that of no false positive at all.
    """
    labels = torch.tensor(positive, dtype=torch.bool)
    ours, theirs = scores[labels], scores[~labels]
    if not len(ours) or len(theirs) * rate < 1:
        return None
    threshold = theirs.sort(descending=True).values[int(len(theirs) * rate)]
    return float((ours > threshold).double().mean())
