"""Measures a model on validation data, on all ranks together; reduces what ranks report.

Metrics are means over loss targets of rows that are the same each time. Each rank measures a
contiguous part of the rows. One exchange gathers what each row gave.

Invariants:

* The training goes on as if nothing had been measured (``engine/memorization/scores.py``). A run
  that validates has bit for bit the weights of one that does not.
* Every rank gets the same numbers: the rows' sums are added up in their own order, and exactly.
* The shape of a pass depends neither on the world size nor on the rows. What a row gives then
  depends on its place in a pass at most, so world sizes agree up to the rounding of a matmul.
* A forward computes in the numbers that training's does, autocast included. So what decides is the
  model that is trained.
* The base model is measured, without adapters. A corpus that may only move an adapter decides
  nothing here.
* Every rank does equally many forward passes, for a forward may be collective itself. An error on
  one rank is raised on all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from govray.data.arrow_rows import ArrowRows
from govray.data.step_reader import StepRows
from govray.engine.batch import IGNORED
from govray.engine.collective.agreement import Agreement, RankFailure
from govray.engine.gradients.forward import LossFn
from govray.engine.gradients.precision import in_precision
from govray.engine.memorization.probe_sharing import most_rows, own_probe_rows, pick
from govray.engine.memorization.scores import untouched
from govray.engine.model.adapters import Adapters
from govray.errors import Refused, UsageError, suggestion
from govray.governance.formats.row_schema import TARGETS
from govray.storage.place import place
from govray.train.inputs.order import HeldOut

ROWS_PER_PASS = 16
_MOST_NATS = 700.0
"""``math.exp`` overflows above."""

RowTensors = Callable[[StepRows], Mapping[str, Tensor]]
"""From packed rows to what a loss function takes, on the CPU."""


@dataclass(frozen=True)
class RowSums:
    """Of some rows, each ``[rows]``, float64, on the CPU.

    Attributes:
        loss: Sum of the losses, nats.
        targets: Number of loss targets.
        hits: Targets that the model finds likeliest; NaN where it gives no logits.
    """

    loss: Tensor
    targets: Tensor
    hits: Tensor

    def table(self) -> Tensor:
        """All of it as ``[rows, 3]``, to be sent."""
        return torch.stack([self.loss, self.targets, self.hits], dim=1)


class Evaluation:
    """The validation data of one worker's run. Construction reads nothing but footers.

    Args:
        rows: How many are measured, at most.
        autocast: Whether training computes losses under autocast to bfloat16.
        seed: The run's; the rows are drawn by it, if not all are measured.
    """

    def __init__(
        self,
        data: HeldOut,
        rows: int,
        model: nn.Module,
        adapters: Adapters,
        agreement: Agreement,
        *,
        tensors: RowTensors,
        autocast: bool,
        seed: int,
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._agreement = agreement
        self._tensors = tensors
        self._autocast = autocast
        self._width = data.manifest.width
        self._rows = ArrowRows(place(data.prepared), data.manifest)
        corpora = sorted(each.corpus for each in data.manifest.corpora)
        every = [(name, row) for name in corpora for row in range(self._rows.rows_in(name))]
        self._chosen = [every[i] for i in pick(len(every), rows, "validation", seed)]

    def __len__(self) -> int:
        return len(self._chosen)

    def measure(self, step: int, loss_fn: LossFn) -> dict[str, float]:
        """The metrics of the model as it is, by name. Collective, with the same result on all.

        Args:
            step: The last step that the weights hold.

        Returns:
            ``loss`` (nats, mean over targets), ``perplexity``, and ``accuracy`` where the loss
            function calls the model once and gets logits from it.

        Raises:
            RankFailed: A rank could not read or measure its rows.
            Refused: The model's forward changed a buffer, or rows are not those of the manifest.
        """
        table = torch.zeros(len(self), 3, dtype=torch.float64)
        failure = None
        try:
            own = own_probe_rows(len(self), self._agreement.rank, self._agreement.world_size)
            table[own.start : own.stop] = self._measure(self._chosen[own.start : own.stop], loss_fn)
        except BaseException as error:  # whatever it is, the other ranks must hear of it
            failure = RankFailure.of(error)
        columns: Any = self._agreement.conclude(step, table, failure).T.tolist()
        return metrics_of(*columns)

    @torch.no_grad()
    def _measure(self, own: Sequence[tuple[str, int]], loss_fn: LossFn) -> Tensor:
        device = next(self._model.parameters()).device
        most = most_rows(len(self), self._agreement.world_size)
        found = [torch.zeros(0, 3, dtype=torch.float64)]
        with untouched(self._model), self._adapters.active(None):
            for first in range(0, -(-most // ROWS_PER_PASS) * ROWS_PER_PASS, ROWS_PER_PASS):
                some = own[first : first + ROWS_PER_PASS]
                tensors = {
                    name: each.to(device) for name, each in self._tensors(self._read(some)).items()
                }
                with in_precision(device, autocast=self._autocast):
                    sums = row_sums(self._model, tensors, loss_fn)
                found.append(sums.table()[: len(some)])
        return torch.cat(found)

    def _read(self, some: Sequence[tuple[str, int]]) -> StepRows:
        """These rows, filled up with empty ones to a whole pass."""
        tokens = np.zeros((ROWS_PER_PASS, self._width), dtype=np.uint32)
        lengths = np.zeros(ROWS_PER_PASS, dtype=np.int64)
        for at, (corpus, number) in enumerate(some):
            row = self._rows.row(corpus, number)
            lengths[at] = len(row)
            tokens[at, : len(row)] = row
        return StepRows(
            step=0,
            tokens=tokens,
            lengths=lengths,
            streams=("",) * ROWS_PER_PASS,
            positions=np.arange(ROWS_PER_PASS),
            corpora=("",) * ROWS_PER_PASS,
        )


def row_sums(model: nn.Module, tensors: Mapping[str, Tensor], loss_fn: LossFn) -> RowSums:
    """Measure rows with the model as it is.

    Args:
        model: In the mode in which it is to be measured.
        tensors: With ``targets``, on the model's device.
        loss_fn: Its losses have the shape of ``targets``.
    """
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        losses = loss_fn(model, tensors)
    finally:
        handle.remove()
    targets = tensors[TARGETS]
    if losses.shape != targets.shape:
        raise UsageError(
            f"losses have shape {tuple(losses.shape)}, targets {tuple(targets.shape)}",
            where="validation",
            do="Return a loss for each target, not reduced",
        )
    counted = targets != IGNORED

    def summed(each: Tensor) -> Tensor:
        return each.double().where(counted, 0.0).reshape(len(each), -1).sum(1).cpu()

    logits = [getattr(each, "logits", each) for each in outputs]
    hits = torch.full((len(targets),), torch.nan, dtype=torch.float64)
    if len(logits) == 1 and isinstance(logits[0], Tensor) and logits[0].shape[:-1] == targets.shape:
        hits = summed(logits[0].argmax(-1) == targets)
    return RowSums(summed(losses), summed(counted), hits)


def metrics_of(
    losses: Sequence[float], targets: Sequence[float], hits: Sequence[float]
) -> dict[str, float]:
    """Metrics by name, from the sums of every row."""
    count = math.fsum(targets)
    if not count:
        raise UsageError(
            "the validation data have no loss target",
            where="validation.corpora",
            do="Hold out records that the model has something to predict in",
        )
    loss = _sum(losses) / count
    found = {"loss": loss, "perplexity": math.exp(min(loss, _MOST_NATS))}
    correct = _sum(hits)
    if not math.isnan(correct):
        found["accuracy"] = correct / count
    return found


def _sum(values: Sequence[float]) -> float:
    """The exact sum, rounded once; not a number if one of them isn't, or has no bound."""
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


# Named reductions: one number out of what each rank reports, equal on all ranks.
#
# Sums are float64, in the order of ranks. A rank that lacks a metric, or reports something else
# than a number, makes all ranks raise the same error.


Reduction = Literal["mean", "sum", "min", "max", "last"]
"""``last`` takes what rank 0 reported last, as a plain report does."""

REDUCTIONS: dict[Reduction, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "sum": math.fsum,
    "min": min,
    "max": max,
    "last": lambda values: values[0],
}


def reduced(
    agreement: Agreement,
    metrics: Mapping[str, object],
    by: Mapping[str, Reduction],
    *,
    where: str,
) -> dict[str, float]:
    """These metrics over all ranks. Collective, with the same result on all.
    Raises ``Refused``: on all ranks: one of them does not report a metric, or reduces others."""
    if odd := sorted(set(by.values()) - REDUCTIONS.keys()):
        known = get_args(Reduction)
        raise UsageError(
            f"no reduction is called {odd[0]!r}{suggestion(odd[0], known)}",
            where="reduce",
            do=f"There are {', '.join(known)}",
        )
    names = sorted(by)
    missing = [name for name in names if not _is_number(metrics.get(name))]
    digest = hashlib.sha256(repr([(name, by[name]) for name in names]).encode()).digest()
    own = torch.tensor([len(missing), int.from_bytes(digest[:6], "big")], dtype=torch.int64)
    if any(int(row[0]) or int(row[1]) != int(own[1]) for row in agreement.exchange(own)):
        _raise(agreement, metrics, by, missing, where)
    numbers = [metrics[name] for name in names]
    values = [float(each) for each in numbers if isinstance(each, int | float)]
    rows = [row.tolist() for row in agreement.exchange(torch.tensor(values, dtype=torch.float64))]
    return {
        name: _finite(REDUCTIONS[by[name]], [row[at] for row in rows])
        for at, name in enumerate(names)
    }


def _raise(
    agreement: Agreement,
    metrics: Mapping[str, object],
    by: Mapping[str, Reduction],
    missing: Sequence[str],
    where: str,
) -> None:
    reported = sorted(name for name, value in metrics.items() if _is_number(value))
    text = ""
    if missing:
        text = (
            f"it reports no number {missing[0]!r}{suggestion(missing[0], reported)}, "
            f"but {', '.join(reported) or 'nothing'}"
        )
    said = agreement.texts(text)
    reduces = agreement.texts(", ".join(f"{name} by {by[name]}" for name in sorted(by)))
    for rank, each in enumerate(said):
        if each:
            raise Refused(
                f"rank {rank}: {each}",
                where=where,
                do="Report the metric on every rank, whenever it is due",
            )
    rank, other = next((r, each) for r, each in enumerate(reduces) if each != reduces[0])
    raise Refused(
        f"rank 0 reduces {reduces[0]}, rank {rank} {other}",
        where=where,
        do="Give report() the same reductions on every rank",
    )


def _finite(reduction: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    return reduction(values) if all(map(math.isfinite, values)) else math.nan


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
