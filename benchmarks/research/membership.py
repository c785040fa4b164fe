"""Published ways to tell rows that a model was trained on from rows that it never saw.

What a model says of rows' tokens goes in, and a score for each row comes out: (rows,), float64.
Scores are higher where a row looks trained on. Studies rank by them beside the product's own.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from govray.engine.memorization.scores import untouched

SHARE = 0.2
"""Of a row's tokens, the least likely: both papers on Min-K% take it, and so does the product."""
FOLDS = 5

_LEAST_SIGMA = 1e-6
_LOG_ZERO = -1e4  # nats; what a token that the model rules out counts as
_LEAST_SPREAD = 1e-9
_WORD = re.compile(rb"\w+|[^\w\s]")


@dataclass(frozen=True)
class TokenStatistics:
    """Of every loss target of equally long rows; (rows, tokens), float64, on the CPU.

    Attributes:
        log_p: Log-probability of the true token, nats.
        mean: Mean of the log-probability under the prediction: the negative entropy.
        sigma: Its standard deviation under the prediction.
    """

    log_p: Tensor
    mean: Tensor
    sigma: Tensor

    @property
    def normalised(self) -> Tensor:
        """How much likelier the true token is than expected, in standard deviations."""
        return (self.log_p - self.mean) / self.sigma.clamp_min(_LEAST_SIGMA)


@torch.no_grad()
def token_statistics(
    model: nn.Module, rows: Sequence[Sequence[int]], *, batch: int = 64
) -> TokenStatistics:
    """Score rows of T + 1 token ids with the model as it is, which stays as it is.

    Args:
        model: Token ids (rows, tokens) → logits (rows, tokens, ids).
        rows: At least one, all equally long.
        batch: Rows in one forward.
    """
    parts = []
    for first in range(0, len(rows), batch):
        tokens = torch.tensor(rows[first : first + batch])
        with untouched(model):
            logits = model(tokens[:, :-1])
        parts.append(_of(logits, tokens[:, 1:]))
    return TokenStatistics(*(torch.cat([part[n] for part in parts]) for n in range(3)))


def _of(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_p = logits.float().log_softmax(-1).clamp_min(_LOG_ZERO)
    p = log_p.exp()
    mean = (p * log_p).sum(-1)
    sigma = (p * (log_p - mean.unsqueeze(-1)).square()).sum(-1).sqrt()
    chosen = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen.double(), mean.double(), sigma.double()


def plain_loss(statistics: TokenStatistics) -> Tensor:
    """The mean log-probability of a row's tokens, nats.

    Source: Yeom et al. 2018, "Privacy Risk in Machine Learning: Analyzing the Connection to
    Overfitting".
    """
    return statistics.log_p.mean(1)


def zlib_loss(statistics: TokenStatistics, texts: Sequence[bytes]) -> Tensor:
    """The log-probability for each byte that zlib needs, so that dull texts don't look memorized.

    Source: Carlini et al. 2021, "Extracting Training Data from Large Language Models".
    """
    sizes = torch.tensor([len(zlib.compress(text)) for text in texts], dtype=torch.float64)
    return statistics.log_p.sum(1) / sizes


def min_k(statistics: TokenStatistics) -> Tensor:
    """Min-K%: the mean log-probability of the least likely tokens.

    Source: Shi et al. 2024, "Detecting Pretraining Data from Large Language Models".
    """
    return _lowest(statistics.log_p)


def min_k_plus_plus(statistics: TokenStatistics) -> Tensor:
    """Min-K%++: the same of log-probabilities in units of each prediction.

    Source: Zhang et al. 2025, "Min-K%++: Improved Baseline for Detecting Pre-Training Data from
    Large Language Models".
    """
    return _lowest(statistics.normalised)


def _lowest(values: Tensor) -> Tensor:
    return values.sort(1).values[:, : max(1, int(values.shape[1] * SHARE))].mean(1)


def lira(statistics: TokenStatistics, references: Sequence[TokenStatistics]) -> Tensor:
    """LiRA offline: how far a row is better known than by reference models, in deviations.

    These were trained alike, without the rows. Under "not trained on" a row's statistic is normal
    around its mean over them. A few models can't tell each row's variance. So, as the paper does
    then, all rows have one. The paper's probability is a monotone function of the deviate, which
    would end at exactly 1 for well known rows.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles".
    """
    own = _logit(plain_loss(statistics))
    others = torch.stack([_logit(plain_loss(each)) for each in references])
    spread = others.std(0).square().mean().sqrt() if len(references) > 1 else own.new_ones(())
    return (own - others.mean(0)) / spread.clamp_min(_LEAST_SPREAD)


def _logit(log_p: Tensor) -> Tensor:
    """The logit of the geometric mean of the tokens' probabilities, which is nearly normal."""
    return log_p - torch.log(-torch.expm1(log_p.clamp_max(-1e-12)))


def bag_of_words(texts: Sequence[bytes], positive: Sequence[bool], seed: int = 0) -> Tensor:
    """How much likelier a text's words are among the positive: a classifier that sees no model.

    If it tells the two sides apart, they are not alike. Then no AUROC of rows against reserve says
    anything about memorization. It is multinomial naive Bayes with Laplace smoothing,
    cross-validated: a row is ranked by a classifier that was fitted on other rows. ``seed`` is of
    the folds, into which each side is dealt at random.

    Sources: Das, Zhang and Tramèr 2025, "Blind Baselines Beat Membership Inference Attacks for
    Foundation Models". Meeus et al. 2025, "SoK: Membership Inference Attacks on LLMs are Rushing
    Nowhere (and How to Fix It)". Of the classifier: McCallum and Nigam 1998, "A Comparison of
    Event Models for Naive Bayes Text Classification".
    """
    words = [Counter(_WORD.findall(text.lower())) for text in texts]
    folds = _folds(positive, seed)
    scores = torch.zeros(len(texts), dtype=torch.float64)
    for fold in range(FOLDS):
        fitted = [
            [words[n] for n in range(len(texts)) if folds[n] != fold and positive[n] == side]
            for side in (True, False)
        ]
        weights = _log_odds(*fitted)
        for n in range(len(texts)):
            if folds[n] == fold:
                known = sum(words[n].values()) or 1
                # Per word, so that a long text is not ranked by its length alone.
                scores[n] = sum(weights.get(w, 0.0) * c for w, c in words[n].items()) / known
    return scores


def _folds(positive: Sequence[bool], seed: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311 — an experiment's randomness, repeatable
    folds = [0] * len(positive)
    for side in (True, False):
        own = [n for n, each in enumerate(positive) if each == side]
        draw.shuffle(own)
        for place, n in enumerate(own):
            folds[n] = place % FOLDS
    return folds


def _log_odds(
    ours: Sequence[Counter[bytes]], theirs: Sequence[Counter[bytes]]
) -> dict[bytes, float]:
    one, other = (
        Counter(word for text in side for word in text.elements()) for side in (ours, theirs)
    )
    known = one.keys() | other.keys()
    most, least = one.total() + len(known), other.total() + len(known)
    return {
        word: math.log((one[word] + 1) / most) - math.log((other[word] + 1) / least)
        for word in known
    }
