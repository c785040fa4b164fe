"""Memorization scores of rows, layer by layer, from what the model predicts for them.

For a loss target with true token x and the prediction p of some layer:

    H = −Σ p log p                    predictive entropy, nats
    z = (−log p(x) − H) / σ           surprise, in standard deviations σ of log p

A memorized row is predicted with low H and low z. Min-K%++ is the mean of −z over the k %
of a row's targets where it is lowest: high on rows that hold no surprise anywhere.

Predictions of the last layer are the model's own; those of the blocks below come from
the logit lens (``logit_lens.py``). A row's score is the mean over its loss targets.

Invariants:

* Scoring leaves no trace: evaluation mode is put back module by module, nothing needs a
  gradient, no generator moves, no buffer may change. A run that scores has bit for bit
  the weights of one that does not.
* Rows go through the model ``rows_per_pass`` at a time, padded to that number. The shapes of a
  pass depend neither on the world size nor on which rows are scored.
* Rows of a corpus with an adapter are read through that adapter, others through none.

Source: Zhang et al. 2024, "Min-K%++: Improved Baseline for Detecting Pre-Training Data
from Large Language Models"; DESIGN measured what of this ranks memorized rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.batch import IGNORED
from govray.engine.gradients.routing import unchanged_buffers
from govray.engine.memorization.logit_lens import Lens
from govray.engine.model.adapters import Adapters
from govray.errors import UsageError

OUTPUT = "head"
"""Layer name of the model's own prediction."""

MIN_K = 0.2
"""Share of a row's targets that Min-K%++ averages."""

ROWS_PER_PASS = 16

_LOG_ZERO = -1e4  # nats; what a masked-out token's log-probability counts as
_LEAST_SIGMA = 1e-6

Logits = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
"""(model, tensors) → logits of shape (rows, tokens, vocabulary)."""


@dataclass(frozen=True)
class TokenScores:
    """Of every target, (rows, tokens), float32.

    Attributes:
        entropy: H, nats.
        surprise: z.
    """

    entropy: Tensor
    surprise: Tensor


@dataclass(frozen=True)
class RowScores:
    """Of some rows; each tensor is (layers, rows), float64, on the CPU.

    Attributes:
        layers: Names, in order; the last is ``head``, the model's own prediction.
        entropy: Mean H, nats.
        surprise: Mean z.
        min_k: Min-K%++.
    """

    layers: tuple[str, ...]
    entropy: Tensor
    surprise: Tensor
    min_k: Tensor

    def __len__(self) -> int:
        return self.entropy.shape[1]

    def __getitem__(self, rows: slice) -> RowScores:
        return RowScores(
            self.layers, self.entropy[:, rows], self.surprise[:, rows], self.min_k[:, rows]
        )

    def table(self) -> Tensor:
        """All of it as (rows, 3·layers), to be sent."""
        return torch.cat([self.entropy, self.surprise, self.min_k]).T.contiguous()

    @classmethod
    def of_table(cls, layers: tuple[str, ...], table: Tensor) -> RowScores:
        """The inverse of ``table``."""
        return cls(layers, *table.T.contiguous().split(len(layers)))


def token_scores(logits: Tensor, targets: Tensor) -> TokenScores:
    """H and z of each target; those of ignored targets mean nothing.

    Args:
        logits: (rows, tokens, vocabulary), of a floating dtype.
        targets: (rows, tokens), int64, on the same device.
    """
    # One row at a time: with a large vocabulary the intermediates are larger than the model's.
    pairs = [_of_row(row, ids) for row, ids in zip(logits, targets, strict=True)]
    return TokenScores(
        entropy=torch.stack([entropy for entropy, _ in pairs]),
        surprise=torch.stack([surprise for _, surprise in pairs]),
    )


def _of_row(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_p = F.log_softmax(logits.float(), -1).clamp_min(_LOG_ZERO)
    p = log_p.exp()
    mean = (p * log_p).sum(-1)
    sigma = (p * (log_p - mean.unsqueeze(-1)).square()).sum(-1).sqrt()
    chosen = log_p.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return -mean, (mean - chosen) / sigma.clamp_min(_LEAST_SIGMA)


def row_means(scores: Tensor, counted: Tensor) -> Tensor:
    """Mean over each row's counted targets: (rows, tokens) → (rows,), float64.

    Args:
        scores: Of a floating dtype.
        counted: Which targets count: bool, of the same shape and device.
    """
    wide = scores.double().where(counted, 0.0)
    return wide.sum(-1) / counted.sum(-1)


def min_k(surprise: Tensor, counted: Tensor, share: float = MIN_K) -> Tensor:
    """Min-K%++: mean of −z where it is lowest: (rows, tokens) → (rows,), float64.

    At least one target of a row is averaged.

    Args:
        surprise: z, of a floating dtype.
        counted: Which targets count: bool, of the same shape and device.
        share: Of a row's targets.
    """
    ordered = (-surprise.double()).where(counted, torch.inf).sort(-1).values
    kept = (counted.sum(-1) * share).long().clamp_min(1)
    among = torch.arange(ordered.shape[-1], device=ordered.device) < kept.unsqueeze(-1)
    return ordered.where(among, 0.0).sum(-1) / kept


@torch.no_grad()
def score_rows(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    logits: Logits,
    lens: Lens,
    adapters: Adapters,
    adapter: str | None = None,
    rows_per_pass: int = ROWS_PER_PASS,
    passes: int = 0,
) -> RowScores:
    """Score rows with the model as it is.

    Args:
        model: Its mode and state are as before when this returns.
        tensors: ``tokens`` and ``targets``, both (rows, tokens), int64, on the model's device;
            every row has a loss target.
        rows_per_pass: Rows of one forward pass.
        passes: Do at least so many, over padding where there are no more rows: where a
            forward is collective, ranks must do equally many.

    Raises:
        UsageError: A row has no loss target, or the logits don't fit the targets.
        Refused: The forward pass changed a buffer.
    """
    targets = tensors["targets"]
    layers = (*lens.layers, OUTPUT)
    if not (targets != IGNORED).any(-1).all():
        raise UsageError("a row has no loss target, so it has no score", where="score_rows")
    tables = []
    needed = -(-len(targets) // rows_per_pass)
    with untouched(model), adapters.active(adapter):
        for place in range(max(needed, passes)):
            first = place * rows_per_pass
            some = {name: _padded(each, first, rows_per_pass) for name, each in tensors.items()}
            table = _score_pass(model, some, logits, lens, layers)
            tables.append(table[: max(0, len(targets) - first)])
    empty = torch.zeros(0, 3 * len(layers), dtype=torch.float64)
    return RowScores.of_table(layers, torch.cat([empty, *tables]))


def _score_pass(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    logits: Logits,
    lens: Lens,
    layers: tuple[str, ...],
) -> Tensor:
    targets = tensors["targets"]
    counted = targets != IGNORED
    scored: dict[str, TokenScores] = {}

    def read(layer: str, predicted: Tensor) -> None:
        if predicted.dim() != 3 or predicted.shape[:2] != targets.shape:
            raise UsageError(
                f"logits have shape {tuple(predicted.shape)}, targets {tuple(targets.shape)}",
                where=layer,
                do="Score a model that predicts a token for each target",
            )
        scored[layer] = token_scores(predicted, targets)

    with lens.logits(read):
        own = logits(model, tensors)
    read(OUTPUT, own)
    every = [scored[layer] for layer in layers]
    return RowScores(
        layers,
        torch.stack([row_means(each.entropy, counted) for each in every]).cpu(),
        torch.stack([row_means(each.surprise, counted) for each in every]).cpu(),
        torch.stack([min_k(each.surprise, counted) for each in every]).cpu(),
    ).table()


def _padded(tensor: Tensor, first: int, rows: int) -> Tensor:
    """Rows from ``first`` on, filled up with zeros: token 0, and target 0."""
    some = tensor[first : first + rows]
    if len(some) == rows:
        return some
    return torch.cat([some, some.new_zeros(rows - len(some), *tensor.shape[1:])])


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode, and all generators, as before after it."""
    modes = {module: module.training for module in model.modules()}
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    model.eval()
    try:
        with unchanged_buffers(model), torch.random.fork_rng(devices=devices):
            yield
    finally:
        # Through train() first: a model may keep the mode of parts that are not its children.
        model.train(modes[model])
        for module, mode in modes.items():
            module.training = mode
