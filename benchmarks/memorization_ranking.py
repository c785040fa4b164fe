"""The product's composite and its baselines over the same rows: which ranks rows trained on best?

Every method gives each row one score. Rows read at least `OFTEN` times are the positives of the
figures; rows that were never read are the negatives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from benchmarks.auroc import auroc, grouped
from benchmarks.membership.bag_of_words import bag_of_words
from benchmarks.membership.lira import lira
from benchmarks.membership.low_false_positives import true_positive_rate
from benchmarks.membership.min_k import min_k, min_k_plus_plus
from benchmarks.membership.plain_loss import plain_loss
from benchmarks.membership.token_statistics import TokenStatistics
from benchmarks.membership.zlib_loss import zlib_loss
from govray.engine.memorization.comparison import composite

OFTEN = 16
"""Reads from which on a row is a positive."""

GROUP = 16
"""Rows of a mean."""

GROUPS = 400

METHODS = ("composite", "loss", "zlib", "min_k", "min_k_plus_plus", "lira", "bag_of_words")
"""The product's, then the baselines; the last sees no model."""


@dataclass(frozen=True)
class Ranking:
    """How well one method ranks rows that were read often above rows never read.

    Attributes:
        auroc: Of single rows.
        auroc_of_means: Of means of sixteen rows; None where a side has fewer.
        true_positive_rate: At a false positive rate of .1 %; None with fewer than 1,000 negatives.
        auroc_by_reads: Reads → AUROC of single rows read so often.
    """

    auroc: float | None
    auroc_of_means: float | None
    true_positive_rate: float | None
    auroc_by_reads: Mapping[int, float | None]


def rank(
    statistics: TokenStatistics,
    references: Sequence[TokenStatistics],
    texts: Sequence[bytes],
    reads: Sequence[int],
    *,
    units: TokenStatistics,
    seed: int,
) -> dict[str, Ranking]:
    """Method → how well it ranks.

    Args:
        statistics: Of the rows, under the model.
        references: Of the same rows, under models which never saw them.
        texts: Of the rows.
        reads: How often the model read each row; 0 for a negative.
        units: Of rows never read and not ranked, whose spread is the composite's unit.
        seed: Of the groups that are averaged, and of the blind classifier's folds.
    """
    scores = {
        "composite": composite(_parts(statistics), _parts(units)),
        "loss": plain_loss(statistics),
        "zlib": zlib_loss(statistics, texts),
        "min_k": min_k(statistics),
        "min_k_plus_plus": min_k_plus_plus(statistics),
        "lira": lira(statistics, references),
        "bag_of_words": bag_of_words(texts, [each > 0 for each in reads], seed),
    }
    return {name: _ranking(scores[name], reads, seed) for name in METHODS}


def averaged(rankings: Collection[Ranking]) -> Ranking:
    """The mean over trainings; a figure that one of them lacks is None."""
    reads = sorted({count for each in rankings for count in each.auroc_by_reads})
    return Ranking(
        auroc=mean_of([each.auroc for each in rankings]),
        auroc_of_means=mean_of([each.auroc_of_means for each in rankings]),
        true_positive_rate=mean_of([each.true_positive_rate for each in rankings]),
        auroc_by_reads={
            count: mean_of([each.auroc_by_reads.get(count) for each in rankings]) for count in reads
        },
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean, or None if there is no value or one is None."""
    found = [value for value in values if value is not None]
    return mean(found) if found and len(found) == len(values) else None


def _parts(statistics: TokenStatistics) -> dict[str, Tensor]:
    """The parts of the product's composite, higher where better known."""
    return {
        "entropy": statistics.mean.mean(1),
        "surprise": statistics.normalised.mean(1),
        "min_k": min_k_plus_plus(statistics),
    }


def _ranking(scores: Tensor, reads: Sequence[int], seed: int) -> Ranking:
    counts = torch.tensor(reads)
    ours, theirs = scores[counts >= OFTEN], scores[counts == 0]
    both = torch.cat([ours, theirs])
    positive = [True] * len(ours) + [False] * len(theirs)
    means = None
    if min(len(ours), len(theirs)) >= GROUP:
        generator = torch.Generator().manual_seed(seed)
        sides = [grouped(side, GROUP, GROUPS, generator) for side in (ours, theirs)]
        means = auroc(torch.cat(sides), [True] * GROUPS + [False] * GROUPS)
    return Ranking(
        auroc=auroc(both, positive),
        auroc_of_means=means,
        true_positive_rate=true_positive_rate(both, positive),
        auroc_by_reads={
            count: auroc(
                scores[(counts == count) | (counts == 0)],
                [each > 0 for each in reads if each in (0, count)],
            )
            for count in sorted(set(reads) - {0})
        },
    )
