"""How likely does the model find the planted digits, among all digits that could stand there?

The rank is that of Carlini et al. 2019 ("The Secret Sharer", section 4.2) over the
whole space of four digits: 1 means the model prefers the planted number to all
9,999 others. It is measured with and without the adapter, on the same base weights.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from govray.demo.supplier import PLANTED, PREFIX

CANDIDATES = 10 ** len(PLANTED)
_BATCH = 500


@torch.no_grad()
def rank(model: nn.Module) -> int:
    """Rank of the planted number among all candidates, 1 … `CANDIDATES`, by total log-loss.

    Args:
        model: Byte-level language model; token ids are byte values.
    """
    width = len(PLANTED)
    losses = []
    for first in range(0, CANDIDATES, _BATCH):
        texts = [f"{PREFIX}{number:0{width}d}" for number in range(first, first + _BATCH)]
        tokens = torch.tensor([list(text.encode()) for text in texts])
        logits = model(tokens[:, :-1])[:, -width:]
        targets = tokens[:, -width:]
        loss = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        losses.append(loss.double().sum(dim=1))
    total = torch.cat(losses)
    return int((total < total[int(PLANTED)]).sum()) + 1
