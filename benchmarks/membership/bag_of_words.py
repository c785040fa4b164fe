"""A classifier that sees no model: words alone, trained on rows, and on reserve.

A membership benchmark whose two sides differ in their words measures that difference. If no
classifier without the model tells them apart, its AUROC is near .5. If it is well above, the sides
are not alike, and no AUROC of rows against reserve says anything about memorization.

Multinomial naive Bayes over words with Laplace smoothing, cross-validated: a row is ranked by a
classifier that was fitted on other rows.

Sources: Das, Zhang and Tramèr 2025, "Blind Baselines Beat Membership Inference Attacks for
Foundation Models". Meeus et al. 2025, "SoK: Membership Inference Attacks on LLMs are Rushing
Nowhere (and How to Fix It)". Of the classifier: McCallum and Nigam 1998, "A Comparison of Event
Models for Naive Bayes Text Classification".
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

FOLDS = 5

_WORD = re.compile(rb"\w+|[^\w\s]")


def bag_of_words(texts: Sequence[bytes], positive: Sequence[bool], seed: int = 0) -> Tensor:
    """How much likelier a text's words are among the positive: (texts,), float64.

    Args:
        texts: Of both sides.
        positive: Which side each is of.
        seed: Of the folds, into which each side is dealt at random.
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
    one, other = _total(ours), _total(theirs)
    known = one.keys() | other.keys()
    most, least = one.total() + len(known), other.total() + len(known)
    return {
        word: math.log((one[word] + 1) / most) - math.log((other[word] + 1) / least)
        for word in known
    }


def _total(texts: Sequence[Counter[bytes]]) -> Counter[bytes]:
    found = Counter[bytes]()
    for each in texts:
        found.update(each)
    return found
