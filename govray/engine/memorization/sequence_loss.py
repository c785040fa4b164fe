"""How many nats a model needs for the given end of token sequences, in batches.

The model is left as it was: modes, generators, buffers (``scores.untouched``).
Sequences of one batch may differ in length: they are filled up on the right, which a
causal model does not see.

Keep adapters active around the call. The model itself refuses a sequence that is longer than its
context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        batch: Sequences in one forward.

    Raises:
        Refused: The forward changed a buffer.

    Returns:
        For each sequence losses in nats, float64 on the CPU, of shape (tokens − start,).
    """
    found: list[Tensor] = []
    for logits, targets, lengths in _forward(model, sequences, starts, batch):
        losses = F.cross_entropy(logits.double(), targets, reduction="none")
        found += losses.cpu().split(lengths)
    return found


def greedy_matches(
    model: nn.Module, sequences: Sequence[Tokens], starts: Sequence[int], *, batch: int = 64
) -> list[bool]:
    """Whether greedy decoding of ``sequence[:start]`` continues with ``sequence[start:]``.

    One forward decides: as long as decoding agrees, its next context is the sequence's own. So it
    agrees to the end exactly if each token there is the most likely one after the true tokens.

    Args and what the model is: as for `target_losses`.
    """
    return [
        bool(each.all())
        for logits, targets, lengths in _forward(model, sequences, starts, batch)
        for each in (logits.argmax(dim=1) == targets).cpu().split(lengths)
    ]


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
