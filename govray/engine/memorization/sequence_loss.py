"""How many nats a model needs for the given end of token sequences, and what follows from it.

The model is left as it was: modes, generators, buffers (``scores.untouched``).
Sequences of one batch may differ in length: they are filled up on the right, which a
causal model does not see.

Keep adapters active around the call. The model itself refuses a sequence that is longer than its
context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


# (n, p)-discoverable extraction: how often one must sample until a text comes word for word.
#
# Under a sampling scheme a model continues a prefix with a given text with probability q. Of n
# independent samples at least one is that text with probability 1 − (1 − q)ⁿ. The text is (n,
# p)-discoverable if that is at least p. Greedy decoding sees only whether the text is the most
# likely one, token by token. Sampling also gives a text that comes once in a hundred times.
#
# q is a product over the text's tokens, given the true ones before. So one forward pass gives it
# and nothing is sampled (``sequence_loss.continuations``).
#
# Source: Hayes et al. 2024, "Measuring memorization through probabilistic discoverable extraction"
# (arXiv 2410.19482), section 3.


MOST = 10**15
"""A text that needs more samples than this counts as not discoverable."""


def chance(log_probability: float, samples: int) -> float:
    """1 − (1 − q)ⁿ: the probability that at least one of n samples is the text.

    Args:
        log_probability: log q, nats, at most 0; −∞ if the scheme never gives the text.
        samples: n, at least 1.
    """
    if log_probability > 0 or math.isnan(log_probability) or samples < 1:
        raise ValueError(f"log probability {log_probability}, {samples} samples")
    if log_probability == 0:
        return 1.0
    return -math.expm1(samples * math.log1p(-math.exp(log_probability)))


def least_samples(log_probability: float, p: float) -> int | None:
    """The least n for which a text is (n, p)-discoverable; None if it is above ``MOST``.

    Args:
        log_probability: log q, nats, at most 0; −∞ if the scheme never gives the text.
        p: In (0, 1).
    """
    if not 0 < p < 1:
        raise ValueError(f"a probability of {p} is not between 0 and 1")
    if chance(log_probability, 1) >= p:
        return 1
    missed = math.log1p(-math.exp(log_probability))  # log (1 − q), at most 0
    if missed == 0 or math.log1p(-p) / missed > MOST:
        return None
    found = math.ceil(math.log1p(-p) / missed)
    # The quotient is rounded: it may be one off, where a whole number is exact.
    if chance(log_probability, found) < p:
        return found + 1
    return found - 1 if chance(log_probability, found - 1) >= p else found


# The counterfactual gap: what a model's loss on a corpus's rows owes to training on them.
#
# Two runs, one trained on the corpus and one not, score the same rows. The gap is the mean
# difference of losses, without − with, in nats a token. It is positive if the trained model
# predicts the rows better. The interval is a paired bootstrap over rows. It covers the choice of
# rows, not the runs' seeds.
#
# The gap alone does not tell memorizing from learning, since both lower the loss on trained rows.
# The same gap on reserve rows says how much of it carries over.
#
# Source: Zhang et al. 2023, "Counterfactual Memorization in Neural Language Models".


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
