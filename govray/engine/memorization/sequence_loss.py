"""How many nats a model needs for the given end of token sequences, in batches.

The model is left as it was: modes, generators, buffers (``scores.untouched``).
Sequences of one batch may differ in length: they are filled up on the right, which a
causal model does not see.

Keep adapters active around the call. The model itself refuses a sequence that is longer than its
context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.memorization.scores import untouched

Tokens = Sequence[int]


def target_losses(
    model: nn.Module, sequences: Sequence[Tokens], starts: Sequence[int], *, batch: int = 64
) -> list[Tensor]:
    """Loss of each token of a sequence from ``start`` on, given all before it.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, ids), or to something
            with ``.logits``, causally.
        sequences: Token ids, each at least two.
        starts: Index of the first token that counts in each, at least 1.

    Returns:
        For each sequence losses in nats, float64 on the CPU, of shape (tokens − start,).
    """
    found: list[Tensor] = []
    for logits, targets, lengths in _forward(model, sequences, starts, batch):
        losses = F.cross_entropy(logits.double(), targets, reduction="none")
        found += losses.cpu().split(lengths)
    return found


class Continuation(NamedTuple):
    """How a model continues a sequence's beginning with its true end.
    ``log_probability``: of the end under the sampling scheme, nats; −∞ if it never comes."""

    greedy: bool
    log_probability: float


def continuations(
    model: nn.Module,
    sequences: Sequence[Tokens],
    starts: Sequence[int],
    *,
    temperature: float,
    top_k: int,
    batch: int = 64,
) -> list[Continuation]:
    """How ``sequence[:start]`` is continued with ``sequence[start:]``, decoding and sampling.

    One forward decides. As long as decoding agrees, its next context is the sequence's own. So
    greedy decoding agrees to the end exactly if each token there is the most likely one after the
    true tokens. The probability of the end is the product of its tokens'.

    Args:
        model, sequences, starts, batch: As for `target_losses`.
        temperature: Logits are divided by it; above 0.
        top_k: A token is drawn from so many most likely ones, and those as likely as the last of
            them; 0: from all.
    """
    if not temperature > 0 or top_k < 0:
        raise ValueError(f"no sampling scheme: temperature {temperature}, top-k {top_k}")
    found: list[Continuation] = []
    for logits, targets, lengths in _forward(model, sequences, starts, batch):
        matches = (logits.argmax(dim=1) == targets).cpu().split(lengths)
        scaled = logits.double() / temperature
        if 0 < top_k < scaled.shape[1]:
            last = scaled.topk(top_k, dim=1).values[:, -1:]
            scaled = scaled.masked_fill(scaled < last, -math.inf)
        each = scaled.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
        found += [
            Continuation(bool(match.all()), min(0.0, float(ends.sum())))
            for match, ends in zip(matches, each.cpu().split(lengths), strict=True)
        ]
    return found


def _forward(
    model: nn.Module, sequences: Sequence[Tokens], starts: Sequence[int], batch: int
) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Of each batch: logits (targets, ids) and ids of all that counts, one sequence behind the
    other, and how many targets each sequence has."""
    if len(starts) != len(sequences) or any(
        not 1 <= start < len(each) for start, each in zip(starts, sequences, strict=False)
    ):
        raise ValueError("each sequence needs a start between its second token and its last")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    for first in range(0, len(sequences), batch):
        rows, begins = sequences[first : first + batch], starts[first : first + batch]
        lengths = [len(row) - begin for row, begin in zip(rows, begins, strict=True)]
        longest = max(map(len, rows))
        filled = [[*row, *[0] * (longest - len(row))] for row in rows]
        tokens = torch.tensor(filled, dtype=torch.long, device=device)
        counts = torch.zeros(len(rows), longest - 1, dtype=torch.bool, device=device)
        for row, begin, length in zip(counts, begins, lengths, strict=True):
            row[begin - 1 : begin - 1 + length] = True
        # Candidates that differ in their last token alone are one input.
        inputs, place = tokens[:, :-1].unique(dim=0, return_inverse=True)
        repeated = len(inputs) < len(tokens)
        with untouched(model), torch.no_grad():
            output = model(inputs if repeated else tokens[:, :-1])
        logits = getattr(output, "logits", output)
        if repeated:
            logits = logits[place]
        yield logits[counts], tokens[:, 1:][counts], lengths
