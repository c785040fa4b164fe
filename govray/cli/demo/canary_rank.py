"""How the model ranks the planted digits among all digits that could stand there.

The rank is that of ``govray.engine.memorization.exposure`` over the whole space of four digits. 1
means that the model prefers the planted number to all 9,999 others. It is measured with and without
the adapter, on the same base weights.
"""

from __future__ import annotations

from torch import nn

from govray.cli.demo.supplier import PLANTED, PREFIX
from govray.engine.memorization.exposure import measure

CANDIDATES = 10 ** len(PLANTED)


def candidate_rank(model: nn.Module) -> int:
    """Rank of the planted number among all candidates, 1 … `CANDIDATES`, by total log-loss.
    ``model``: byte-level language model; token ids are byte values."""
    width = len(PLANTED)
    others = [f"{number:0{width}d}" for number in range(CANDIDATES)]
    others.remove(PLANTED)
    texts = [f"{PREFIX}{secret}".encode() for secret in (PLANTED, *others)]
    found = measure(model, texts[0], texts[1:], CANDIDATES, batch=500)
    assert found.rank is not None  # all candidates were scored
    return found.rank
