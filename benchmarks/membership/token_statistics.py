"""What a model says of every token of some rows; all the baselines but the blind one start here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from govray.engine.memorization.scores import untouched

_LEAST_SIGMA = 1e-6
_LOG_ZERO = -1e4  # nats; what a token that the model rules out counts as


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

    def __getitem__(self, rows: slice) -> TokenStatistics:
        return TokenStatistics(self.log_p[rows], self.mean[rows], self.sigma[rows])


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
    return TokenStatistics(
        *(torch.cat([part[n] for part in parts]) for n in range(3)),
    )


def _of(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_p = logits.float().log_softmax(-1).clamp_min(_LOG_ZERO)
    p = log_p.exp()
    mean = (p * log_p).sum(-1)
    sigma = (p * (log_p - mean.unsqueeze(-1)).square()).sum(-1).sqrt()
    chosen = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen.double(), mean.double(), sigma.double()
