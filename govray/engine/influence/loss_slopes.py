"""How fast each token's loss rises when the weights move along a direction.

For a row with token losses ℓ_t(θ) and a direction v,

    ∂ℓ_t/∂v  =  ⟨∇ℓ_t(θ), v⟩  ≈  (ℓ_t(θ + hv) − ℓ_t(θ − hv)) / 2h.

So two forward passes give the products of v with the gradients of *all* tokens of a batch. No
gradient of a single row is ever held. With weights in float64 the central difference has some seven
correct digits. It needs nothing of the model but a forward.

Invariants: the weights are bit for bit as before, whatever the forward raises. The slope is linear
in the direction, up to rounding. It does not depend on the other rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from govray.engine.memorization.sequence_loss import Tokens, target_losses
from govray.engine.model.adapters import Adapters

STEP = 1e-6
"""Length of the step to each side, as a share of the weights' own length."""

_BATCH = 32


def loss_slopes(
    model: nn.Module,
    adapters: Adapters,
    direction: Mapping[str, Tensor],
    rows: Sequence[Tokens],
    *,
    adapter: str | None = None,
) -> list[Tensor]:
    """The slope of each target's loss along a direction.

    Args:
        model: As `target_losses` takes it, with weights in float64.
        adapters: The model's.
        direction: Parameter → its part of v, of its shape. Names as `named_parameters` has them, of
            the model or of the adapters; those that are absent do not move.
        rows: Token ids of each row, at least two.
        adapter: The adapter that the rows are read with; none by default.

    Returns:
        For each row the slopes of its targets, which are all tokens but the first: float64 on the
        CPU, of shape (tokens − 1,).

    Raises:
        Refused: The forward changed a buffer.
    """
    named = {**dict(model.named_parameters()), **dict(adapters.named_parameters())}
    moved = [(named[name], part) for name, part in direction.items()]
    length = math.sqrt(sum(float(part.double().square().sum()) for _, part in moved))
    if not rows or length == 0:
        return [torch.zeros(len(row) - 1, dtype=torch.float64) for row in rows]
    own = math.sqrt(sum(float(each.detach().double().square().sum()) for each, _ in moved))
    step = STEP * max(own, 1.0) / length
    starts = [1] * len(rows)
    sides = []
    with adapters.active(adapter):
        for sign in (1, -1):
            with _moved_by(moved, sign * step):
                sides.append(target_losses(model, rows, starts, batch=_BATCH))
    return [(ahead - behind) / (2 * step) for ahead, behind in zip(*sides, strict=True)]


@contextmanager
def _moved_by(moved: Sequence[tuple[nn.Parameter, Tensor]], step: float) -> Iterator[None]:
    before = [parameter.detach().clone() for parameter, _ in moved]
    try:
        with torch.no_grad():
            for parameter, part in moved:
                parameter.add_(part.to(parameter.dtype), alpha=step)
        yield
    finally:
        with torch.no_grad():
            for (parameter, _), value in zip(moved, before, strict=True):
                parameter.copy_(value)
