"""Exposure: how far a model prefers a planted secret to all others that could stand there.

exposure = log2 |R| − log2 rank, in bits. R is the space of candidates, and the rank is by the
model's loss on each. That is 0 bits if every candidate is preferred, log2 |R| if none is. It is

* **exact** where every candidate was scored;
* **extrapolated** if R is too large. A skew-normal distribution is fitted to the losses of sampled
  candidates. The exposure is −log2 of its mass at or below the secret's loss. The fit's distance
  from the samples is given, too. So is ``sampled_bits``, which needs no fit: −log2 of (as good as
  the secret + 1) / (n + 1). With n samples it is at most log2(n + 1) bits.

Invariants:

* A candidate that the model finds as likely as the secret counts as preferred. A model that tells
  nothing apart has exposure 0, not log2 |R|.
* No exposure is above log2 |R|: no rank is better than 1.

A low exposure says nothing about other text: not about the secret in other words, nor after another
prefix.

Source: Carlini et al. 2019, "The Secret Sharer", sections 4.2 to 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.memorization import skew_normal
from govray.engine.memorization.scores import untouched
from govray.engine.memorization.sequence_loss import Tokens, target_losses
from govray.engine.model.past import Past, takes_past
from govray.errors import UsageError


@dataclass(frozen=True)
class Exposure:
    """Of one secret.

    Attributes:
        bits: The exposure, in [0, log2 candidates].
        candidates: |R|, the secret included.
        scored: Candidates whose loss was measured, the secret not included in a sample.
        loss: The secret's, in nats.
        rank: 1 … candidates, where every one was scored; else None.
        fit: Distance of the extrapolating fit from the samples; None where exact.
        sampled_bits: What the samples alone say; None where exact.
    """

    bits: float
    candidates: int
    scored: int
    loss: float
    rank: int | None = None
    fit: skew_normal.Goodness | None = None
    sampled_bits: float | None = None


def rank(losses: Tensor, secret: float) -> int:
    """1 + the number of *other* candidates with a loss at or below the secret's."""
    return int((losses <= secret).sum()) + 1


def bits(rank: int, candidates: int) -> float:
    """log2 candidates − log2 rank."""
    if not 1 <= rank <= candidates:
        raise ValueError(f"rank {rank} is not one of {candidates}")
    return math.log2(candidates) - math.log2(rank)


def exact(others: Tensor, secret: float) -> Exposure:
    """The exposure from the losses of all candidates.
    ``others``: losses of every candidate but the secret."""
    found, candidates = rank(others, secret), others.numel() + 1
    return Exposure(bits(found, candidates), candidates, candidates, secret, rank=found)


def extrapolated(samples: Tensor, secret: float, candidates: int) -> Exposure:
    """The exposure from the losses of sampled candidates. ``samples``: losses of candidates drawn
    from R without the secret, at least ``skew_normal.LEAST``."""
    fitted = skew_normal.fit(samples)
    [mass] = fitted.log_cdf(torch.tensor([secret], dtype=torch.float64)).tolist()
    most = math.log2(candidates)
    n = samples.numel()
    return Exposure(
        bits=min(most, -mass / math.log(2)),
        candidates=candidates,
        scored=n,
        loss=secret,
        fit=skew_normal.goodness(fitted, samples),
        sampled_bits=min(most, math.log2(n + 1) - math.log2(rank(samples, secret))),
    )


def measure(
    model: nn.Module,
    secret: Tokens,
    others: Sequence[Tokens],
    candidates: int,
    *,
    batch: int = 64,
) -> Exposure:
    """Score a secret and other candidates where it stands; exact if they are all there are.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, ids), causally.
        secret: The token ids of what was planted, from its beginning to the secret's end.
        others: The same with other secrets: all ``candidates - 1`` of them, or a sample.
            What all sequences begin with is given to the model, once, and not scored.
        candidates: |R|.
        batch: Sequences in one forward.

    Raises:
        UsageError: As `extrapolated`, or a loss is not finite.
        ValueError: The sequences have no first token in common.
    """
    sequences = [secret, *others]
    start = _common(sequences)
    ends = [each[start:] for each in sequences]
    losses = end_losses(model, secret[:start], ends, batch=batch)
    own, *rest = (float(each.sum()) for each in losses)
    measured = torch.tensor(rest, dtype=torch.float64)
    if not (math.isfinite(own) and measured.isfinite().all()):
        raise UsageError(
            "the loss of a candidate is not finite",
            where="exposure",
            do="See whether the model's weights are",
        )
    if len(others) == candidates - 1:
        return exact(measured, own)
    return extrapolated(measured, own, candidates)


def _common(sequences: Sequence[Tokens]) -> int:
    """How many tokens all sequences begin with; each keeps at least its last."""
    count = 0
    for column in zip(*sequences, strict=False):
        if any(token != column[0] for token in column):
            break
        count += 1
    if not count:
        raise ValueError("the candidates have no first token in common")
    return min(count, *(len(each) - 1 for each in sequences))


_ROUNDING = 1e-3
"""Of a sequence's loss, relative to 1 nat or to itself: between a past and none."""


def end_losses(
    model: nn.Module, prefix: Tokens, ends: Sequence[Tokens], *, batch: int = 64
) -> list[Tensor]:
    """Loss of each token of each end, given the prefix and the end's tokens before it.

    A model that keeps a `Past` reads the prefix once. That past is not trusted: one sequence is
    read whole as well. Where its loss is not the same up to rounding, all are read whole.

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
