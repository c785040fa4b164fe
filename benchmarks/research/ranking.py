"""How well scores rank rows that a model read above rows that it never read.

AUROC is the probability that a random positive is ranked above a random negative; ties count half.

Sources: Fawcett 2006, "An introduction to ROC analysis". Of the share found when next to no other
row may be called one: Carlini et al. 2022, "Membership Inference Attacks From First Principles".
A mean over all thresholds, as AUROC is, hides whether a score is ever sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn

from benchmarks.research.canaries import SEPARATOR
from benchmarks.research.membership import (
    TokenStatistics,
    bag_of_words,
    lira,
    min_k,
    min_k_plus_plus,
    plain_loss,
    token_statistics,
    zlib_loss,
)
from benchmarks.research.runs import REPEATED, Data, Family, Reading, Recipe, references
from govray.engine.memorization.comparison import composite

OFTEN = 16
"""Reads from which on a row is a positive."""
GROUP, GROUPS = 16, 400
"""Rows of a mean, and means."""
RATE = 1e-3
"""Of false positives, where a score has to be sure."""
_MOST_COLUMNS = 6  # numbers of reads that a table shows


def auroc(scores: Tensor, positive: Sequence[bool]) -> float | None:
    """Of scores (items,), higher where a positive is expected; None without one, or without any
    other."""
    labels = torch.tensor(positive, dtype=torch.bool)
    ours, theirs = scores[labels], scores[~labels]
    if not len(ours) or not len(theirs):
        return None
    above = (ours[:, None] > theirs).double() + (ours[:, None] == theirs).double() / 2
    return float(above.mean())


def auroc_of_means(ours: Tensor, theirs: Tensor, seed: int) -> float | None:
    """Of means of random groups of sixteen distinct items of each side; None with fewer."""
    if min(len(ours), len(theirs)) < GROUP:
        return None
    generator = torch.Generator().manual_seed(seed)
    means = []
    for side in (ours, theirs):
        picked = torch.rand(GROUPS, len(side), generator=generator).argsort(1)[:, :GROUP]
        means.append(side[picked].mean(1))
    return auroc(torch.cat(means), [True] * GROUPS + [False] * GROUPS)


def true_positive_rate(ours: Tensor, theirs: Tensor) -> float | None:
    """The share of positives above a threshold that at most `RATE` of the others pass.

    None without a positive, or with fewer others than 1 / `RATE`: then the threshold would be that
    of no false positive at all.
    """
    if not len(ours) or len(theirs) * RATE < 1:
        return None
    threshold = theirs.sort(descending=True).values[int(len(theirs) * RATE)]
    return float((ours > threshold).double().mean())


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


def rankings(
    recipe: Recipe, data: Data, model: nn.Module, reading: Reading, seed: int, family: Family
) -> dict[str, Ranking]:
    """Method → how well it ranks the first rows of records read repeatedly, against others'.

    The product's composite comes first. The last method sees no model.
    """
    counts = Counter(tuple(row) for _, row in reading.read[REPEATED])
    ours = [record[0] for record in data.repeated.trained if counts[tuple(record[0])]]
    theirs = [record[0] for record in data.others if not counts[tuple(record[0])]]
    rows = [*ours, *theirs]
    reads = [counts[tuple(row)] for row in ours] + [0] * len(theirs)
    texts = [bytes(token for token in row if token != SEPARATOR) for row in rows]
    found = token_statistics(model, rows)
    units = token_statistics(model, [record[0] for record in data.repeated.reserve])
    others = [token_statistics(m, rows) for m in references(recipe, data, seed, family)]
    scores = {
        "composite": composite(_parts(found), _parts(units)),
        "loss": plain_loss(found),
        "zlib": zlib_loss(found, texts),
        "min_k": min_k(found),
        "min_k_plus_plus": min_k_plus_plus(found),
        "lira": lira(found, others),
        "bag_of_words": bag_of_words(texts, [each > 0 for each in reads], seed),
    }
    return {name: _ranking(each, reads, seed) for name, each in scores.items()}


def averaged(found: Collection[Ranking]) -> Ranking:
    """The mean over trainings; a figure that one of them lacks is None."""
    reads = sorted({count for each in found for count in each.auroc_by_reads})
    return Ranking(
        auroc=mean_of([each.auroc for each in found]),
        auroc_of_means=mean_of([each.auroc_of_means for each in found]),
        true_positive_rate=mean_of([each.true_positive_rate for each in found]),
        auroc_by_reads={
            count: mean_of([each.auroc_by_reads.get(count) for each in found]) for count in reads
        },
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean, or None if there is no value or one is None."""
    found = [value for value in values if value is not None]
    return mean(found) if found and len(found) == len(values) else None


def table(found: Mapping[str, Ranking]) -> str:
    """A line for each method."""
    counts = [*next(iter(found.values())).auroc_by_reads]
    few = counts if len(counts) <= _MOST_COLUMNS else []
    head = f"{'AUROC':<18}{'single':>8}{f'of {GROUP}':>8}{'TPR .1%':>9}"
    lines = [head + "".join(f"{f'{count} reads':>10}" for count in few)]
    for name, each in found.items():
        line = f"{name:<18}{shown(each.auroc):>8}{shown(each.auroc_of_means):>8}"
        line += f"{shown(each.true_positive_rate):>9}"
        lines.append(line + "".join(f"{shown(each.auroc_by_reads[n]):>10}" for n in few))
    return "\n".join(lines)


def shown(value: float | None) -> str:
    """A figure of a table."""
    return "-" if value is None else f"{value:.4f}"


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
    return Ranking(
        auroc=auroc(torch.cat([ours, theirs]), [True] * len(ours) + [False] * len(theirs)),
        auroc_of_means=auroc_of_means(ours, theirs, seed),
        true_positive_rate=true_positive_rate(ours, theirs),
        auroc_by_reads={
            count: auroc(
                scores[(counts == count) | (counts == 0)],
                [each > 0 for each in reads if each in (0, count)],
            )
            for count in sorted(set(reads) - {0})
        },
    )
