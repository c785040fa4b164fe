"""The losses of many ends of one beginning: the beginning goes through the model once.

A canary's candidates differ in their last tokens alone. A model that keeps a `Past` reads their
common beginning once, and then the ends. Others read whole sequences.

Invariant: **a past is not trusted.** One sequence is read whole as well. Where its loss is not the
same up to rounding, all are read whole. So no model is measured by a cache that it does not
support.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.memorization.scores import untouched
from govray.engine.memorization.sequence_loss import Tokens, target_losses
from govray.engine.model.past import Past, takes_past
from govray.errors import UsageError

_ROUNDING = 1e-3
"""Of a sequence's loss, relative to 1 nat or to itself: between a past and none."""


def end_losses(
    model: nn.Module, prefix: Tokens, ends: Sequence[Tokens], *, batch: int = 64
) -> list[Tensor]:
    """Loss of each token of each end, given the prefix and the end's tokens before it.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, ids), causally.
        prefix: At least one token.
        ends: At least one token each.
        batch: Sequences in one forward; of ends, more in proportion as they are shorter.

    Returns:
        For each end losses in nats, float64 on the CPU, of shape (tokens,).
    """
    if not prefix or not all(ends):
        raise ValueError("a prefix and its ends need at least one token each")
    longest = max(range(len(ends)), key=lambda index: len(ends[index]), default=None)
    if longest is not None and takes_past(model) and not _apart(model, [prefix, *ends]):
        try:
            found = _after_past(model, prefix, ends, batch)
        except UsageError:  # the architecture keeps none, or the sequences are too long for it
            found = None
        if found is not None:
            [whole] = target_losses(model, [[*prefix, *ends[longest]]], [len(prefix)])
            if torch.allclose(found[longest], whole, rtol=_ROUNDING, atol=_ROUNDING):
                return found
    sequences = [[*prefix, *end] for end in ends]
    return target_losses(model, sequences, [len(prefix)] * len(ends), batch=batch)


def _apart(model: nn.Module, sequences: Sequence[Tokens]) -> bool:
    """Whether records of a row are kept apart, and a sequence has more than one."""
    separator = getattr(model, "separator", None)
    return separator is not None and any(separator in each for each in sequences)


def _after_past(
    model: nn.Module, prefix: Tokens, ends: Sequence[Tokens], batch: int
) -> list[Tensor]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    past, found = Past(), []
    # As many tokens in a forward as whole sequences would have.
    batch *= 1 + len(prefix) // max(map(len, ends))
    with untouched(model), torch.no_grad():
        first = model(torch.tensor([list(prefix)], device=device), past=past)[:, -1:]
        for start in range(0, len(ends), batch):
            some = ends[start : start + batch]
            width = max(map(len, some))
            filled = [[*end, *[0] * (width - len(end))] for end in some]
            tokens = torch.tensor(filled, dtype=torch.long, device=device)
            logits = first.expand(len(some), -1, -1)
            if width > 1:
                # Ends that differ in their last token alone are one input.
                inputs, place = tokens[:, :-1].unique(dim=0, return_inverse=True)
                logits = torch.cat([logits, model(inputs, past=past)[place]], dim=1)
            losses = F.cross_entropy(
                logits.double().flatten(0, 1), tokens.flatten(), reduction="none"
            ).view(tokens.shape)
            found += [row[: len(end)] for row, end in zip(losses.cpu(), some, strict=True)]
    return found
