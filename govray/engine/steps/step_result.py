"""What one step did, the same on all ranks: what the ledger, metrics and reports are told of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from govray.engine.steps.batch import AfterStep


@dataclass(frozen=True)
class NormSample:
    """What was measured in one step, the same on all ranks.

    Attributes:
        pieces: (rank, stream, rows by corpus) for each stream of each pass.
        squares: (corpus, layer group) → Σ over its pieces of ‖g‖², g divided by N_l.
    """

    pieces: tuple[tuple[int, str, Mapping[str, int]], ...]
    squares: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class StepResult:
    """What one step did, the same on all ranks.

    Attributes:
        step: The global step.
        loss: Mean over all loss targets of all ranks; NaN if there were none.
        stream_losses: The same mean per route that rows with loss targets took.
        group_targets: N_l per layer group, 0 included.
        corpus_counts: (rows, loss targets) per corpus that was read.
        grad_norms: Gradient norm before clipping, per domain that moved.
        time: Rank 0's clock when the step began, in seconds since the epoch; 0
            without a clock.
        norms: Gradient norms by corpus, on sampled steps.
        asked: The most that some rank was asked for.
    """

    step: int
    loss: float
    stream_losses: Mapping[str, float]
    group_targets: Mapping[str, int]
    corpus_counts: Mapping[str, tuple[int, int]]
    world_size: int
    grad_norms: Mapping[str, float]
    time: int
    norms: NormSample | None = None
    asked: AfterStep = AfterStep.NOTHING


def loss_per_target(total: float, targets: float) -> float:
    """NaN if there were no loss targets."""
    return total / targets if targets else math.nan
