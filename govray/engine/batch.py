"""What one rank brings to one optimizer step: micro-batches of rows.

A micro-batch holds rows of one route stream. All of them may update the same parameters, and none
shares a kernel call with a row of another domain.

Invariants (checked by ``StepBatch.check``, on every rank, before the forward):

* All tensors of a micro-batch have as many rows as there are positions.
* Rows and targets of the micro-batches add up to those of the corpora.

The step, not the batch, compares targets with ``row_targets``, once it has the losses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from govray.errors import Refused, UsageError

IGNORED = -100
"""The target of a position that is no loss target."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one route stream that go through the model together.

    Attributes:
        stream: The route's digest.
        tensors: Inputs of the loss function, first dimension: rows. Has
            ``targets``, which are −100 where there is no loss target.
        positions: Of each row, within the stream's quota of this step.
        row_targets: Loss targets of each row.
        corpora: Corpus of each row; rows of one corpus stand together. Empty if nobody
            asks for gradient norms.
    """

    stream: str
    tensors: Mapping[str, Tensor]
    positions: tuple[int, ...]
    row_targets: tuple[int, ...]
    corpora: tuple[str, ...] = ()

    @property
    def targets(self) -> int:
        """Number of loss targets."""
        return sum(self.row_targets)

    def without(self, corpora: Collection[str]) -> MicroBatch | None:
        """The rows of other corpora, as if these had not been read; None if there are none."""
        kept = [i for i, corpus in enumerate(self.corpora) if corpus not in corpora]
        if len(kept) == len(self.positions):
            return self
        if not kept:
            return None
        return MicroBatch(
            stream=self.stream,
            tensors={name: tensor[kept] for name, tensor in self.tensors.items()},
            positions=tuple(self.positions[i] for i in kept),
            row_targets=tuple(self.row_targets[i] for i in kept),
            corpora=tuple(self.corpora[i] for i in kept),
        )

    def cut(self, start: int, stop: int) -> MicroBatch:
        """The rows from ``start`` up to ``stop``; itself if those are all."""
        if start <= 0 and stop >= len(self.positions):
            return self
        rows = slice(start, stop)
        return MicroBatch(
            stream=self.stream,
            tensors={name: tensor[rows] for name, tensor in self.tensors.items()},
            positions=self.positions[rows],
            row_targets=self.row_targets[rows],
            corpora=self.corpora[rows],
        )


@dataclass(frozen=True)
class StepBatch:
    """One rank's part of one step.

    Attributes:
        step: The global step, from 0.
        micro_batches: This rank's, possibly none.
        corpora: This rank's (rows, loss targets) by corpus.
        error: Why this rank could not load its part. All ranks stop together.
        refused: Whether that is a refusal, which no restart would change.
        unreachable: Whether storage failed, which may answer another time.
        stop: This rank was asked to stop the run; all ranks learn of it in this step.
        pause: This rank was asked to commit after this step and wait; likewise.
    """

    step: int
    micro_batches: tuple[MicroBatch, ...]
    corpora: Mapping[str, tuple[int, int]]
    error: str | None = None
    refused: bool = False
    unreachable: bool = False
    stop: bool = False
    pause: bool = False

    def without(self, corpora: Collection[str]) -> StepBatch:
        """The batch as if these corpora had not been read.

        Raises:
            UsageError: A micro-batch does not say which corpus each of its rows is of.
        """
        if not any(corpus in corpora for corpus in self.corpora):
            return self
        for each in self.micro_batches:
            if len(each.corpora) != len(each.positions):
                raise UsageError(
                    "a micro-batch does not name its rows' corpora", where=f"step {self.step}"
                )
        left = [each.without(corpora) for each in self.micro_batches]
        return replace(
            self,
            micro_batches=tuple(each for each in left if each is not None),
            corpora={name: use for name, use in self.corpora.items() if name not in corpora},
        )

    def check(self, streams: Collection[str], corpora: Collection[str]) -> None:
        """Compare what the batch says about itself with itself and with the run.

        Args:
            streams: Ids of the run's route streams.
            corpora: Names of the run's corpora.

        Raises:
            Refused: On an unknown stream or corpus, or sums that differ.
            UsageError: If a tensor has a wrong number of rows, or there is no ``targets``.
        """
        where = f"step {self.step}"
        for micro_batch in self.micro_batches:
            rows = len(micro_batch.positions)
            if micro_batch.stream not in streams:
                raise Refused(
                    f"rows of stream {micro_batch.stream}, which no route of this run has",
                    where=where,
                    do="Build batches from the batch plan of this run",
                )
            if "targets" not in micro_batch.tensors:
                raise UsageError("a micro-batch has no tensor 'targets'", where=where)
            if not rows:
                raise UsageError("a micro-batch has no rows", where=where, do="Leave it out")
            sizes = {name: len(tensor) for name, tensor in micro_batch.tensors.items()}
            sizes["row_targets"] = len(micro_batch.row_targets)
            if micro_batch.corpora:
                sizes["corpora"] = len(micro_batch.corpora)
            for name, size in sizes.items():
                if size != rows:
                    raise UsageError(f"{name} has {size} rows, positions {rows}", where=where)
        named = {corpus for each in self.micro_batches for corpus in each.corpora}
        for corpus in (*self.corpora, *sorted(named - self.corpora.keys())):
            if corpus not in corpora:
                raise Refused(
                    f"rows of corpus {corpus}, which was not admitted to this run", where=where
                )
        stated = (
            sum(rows for rows, _ in self.corpora.values()),
            sum(targets for _, targets in self.corpora.values()),
        )
        held = (
            sum(len(micro_batch.positions) for micro_batch in self.micro_batches),
            sum(micro_batch.targets for micro_batch in self.micro_batches),
        )
        if stated != held:
            raise Refused(
                f"its corpora count {stated[0]} rows and {stated[1]} loss targets, "
                f"its micro-batches {held[0]} and {held[1]}",
                where=where,
                do="Every row that is trained on must be counted for its corpus, once",
            )
