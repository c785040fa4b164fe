"""The loss alone: a row that the model predicts well was trained on.

Source: Yeom et al. 2018, "Privacy Risk in Machine Learning: Analyzing the Connection to
Overfitting".
"""

from __future__ import annotations

from torch import Tensor

from benchmarks.membership.token_statistics import TokenStatistics


def plain_loss(statistics: TokenStatistics) -> Tensor:
    """The mean log-probability of a row's tokens, nats: (rows,), float64."""
    return statistics.log_p.mean(1)
