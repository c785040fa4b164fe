"""The least likely tokens of a row: few are surprising where the row was trained on.

Source of Min-K%: Shi et al. 2024, "Detecting Pretraining Data from Large Language Models". Of
Min-K%++: Zhang et al. 2025, "Min-K%++: Improved Baseline for Detecting Pre-Training Data from Large
Language Models". Both papers take 20 % of the tokens among others; so does the product.
"""

from __future__ import annotations

from torch import Tensor

from benchmarks.membership.token_statistics import TokenStatistics

SHARE = 0.2


def min_k(statistics: TokenStatistics, share: float = SHARE) -> Tensor:
    """Min-K%: the mean log-probability of the least likely tokens: (rows,), float64."""
    return _lowest(statistics.log_p, share)


def min_k_plus_plus(statistics: TokenStatistics, share: float = SHARE) -> Tensor:
    """Min-K%++: the same of log-probabilities in units of each prediction: (rows,), float64."""
    return _lowest(statistics.normalised, share)


def _lowest(values: Tensor, share: float) -> Tensor:
    return values.sort(1).values[:, : max(1, int(values.shape[1] * share))].mean(1)
