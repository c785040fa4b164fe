"""LiRA offline: a row's likelihood beside that under reference models which never saw it.

The reference models were trained alike, without the rows. Under "not trained on" a row's statistic
is normal around its mean over them. A few models can't tell each row's variance. So, as the paper
does then, all rows have one.

The score is the normal deviate. The paper's probability is a monotone function of it, which would
end at exactly 1 for well known rows.

Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.membership.plain_loss import plain_loss
from benchmarks.membership.token_statistics import TokenStatistics

_LEAST_SPREAD = 1e-9


def lira(statistics: TokenStatistics, references: Sequence[TokenStatistics]) -> Tensor:
    """How far a row is better known than by reference models, in deviations: (rows,), float64.

    Args:
        statistics: Of the rows, under the model in question.
        references: Of the same rows under each reference model; at least one.
    """
    own = _logit(plain_loss(statistics))
    others = torch.stack([_logit(plain_loss(each)) for each in references])
    spread = others.std(0).square().mean().sqrt() if len(references) > 1 else own.new_ones(())
    return (own - others.mean(0)) / spread.clamp_min(_LEAST_SPREAD)


def _logit(log_p: Tensor) -> Tensor:
    """The logit of the geometric mean of the tokens' probabilities, which is nearly normal."""
    return log_p - torch.log(-torch.expm1(log_p.clamp_max(-1e-12)))
