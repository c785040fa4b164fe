"""What one rank brings to one optimizer step: micro-batches of rows.

A micro-batch holds rows of one route stream. All of them may update the same parameters, and none
shares a kernel call with a row of another domain. Rows of a corpus that a gate or a phase sent to
another route form a micro-batch of their own.

Invariants (checked by ``StepBatch.check``, on every rank, before the forward):

* All tensors of a micro-batch have as many rows as there are positions.
* Rows and targets of the micro-batches add up to those of the corpora.

The step, not the batch, compares targets with ``row_targets``, once it has the losses.

Tensors are torch's or numpy's: nothing here looks into them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from importlib import import_module
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from govray.errors import Refused, UsageError

Tensor = Any
"""An array of torch or numpy: it has a length, and slices of rows."""

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
        taken: Digest of the route that a gate or a later phase sent the rows to; None if they
            take the stream's own. Dropout masks stay those of stream and position.
    """

    stream: str
    tensors: Mapping[str, Tensor]
    positions: tuple[int, ...]
    row_targets: tuple[int, ...]
    corpora: tuple[str, ...] = ()
    taken: str | None = None

    @property
    def targets(self) -> int:
        return sum(self.row_targets)

    @property
    def route(self) -> str:
        """Digest of the route by which the rows train."""
        return self.taken or self.stream

    def without(self, corpora: Collection[str]) -> MicroBatch | None:
        """The rows of other corpora, as if these had not been read; None if no row is left."""
        kept = [i for i, corpus in enumerate(self.corpora) if corpus not in corpora]
        if len(kept) == len(self.positions):
            return self
        return self._rows(kept) if kept else None

    def rerouted(self, routes: Mapping[str, str]) -> tuple[MicroBatch, ...]:
        """The same rows, those of some corpora by other routes; a micro-batch for each route.
        ``routes``: corpus → digest of the route that its rows take from now on."""
        rows: dict[str | None, list[int]] = {}
        for i, corpus in enumerate(self.corpora):
            rows.setdefault(routes.get(corpus, self.taken), []).append(i)
        return tuple(
            replace(self._rows(each), taken=taken)
            for taken, each in sorted(rows.items(), key=lambda item: item[0] or "")
        )

    def _rows(self, kept: Sequence[int]) -> MicroBatch:
        if len(kept) == len(self.positions):
            return self
        return replace(
            self,
            tensors={name: _taken(tensor, kept) for name, tensor in self.tensors.items()},
            positions=tuple(self.positions[i] for i in kept),
            row_targets=tuple(self.row_targets[i] for i in kept),
            corpora=tuple(self.corpora[i] for i in kept),
        )

    def cut(self, start: int, stop: int) -> MicroBatch:
        """The rows from ``start`` up to ``stop``; itself if those are all."""
        if start <= 0 and stop >= len(self.positions):
            return self
        rows = slice(start, stop)
        return replace(
            self,
            tensors={name: tensor[rows] for name, tensor in self.tensors.items()},
            positions=self.positions[rows],
            row_targets=self.row_targets[rows],
            corpora=self.corpora[rows],
        )


def _taken(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows, in ascending order. A list of indices would be copied to the device, and the host
    would wait for that: so they are cut out run by run."""
    starts = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1] + 1]
    runs = pairwise([*starts, len(rows)])
    # `concat` is the array API's name for it. A subclass is of its base's framework.
    bases = (base.__module__.partition(".")[0] for base in type(tensor).__mro__)
    framework = import_module(next(name for name in bases if name in ("torch", "numpy")))
    return framework.concat([tensor[rows[start] : rows[stop - 1] + 1] for start, stop in runs])


class AfterStep(IntEnum):
    """What a rank asks all ranks to do after a step. Of what several ask, the most counts: it is
    what those below it are, and more."""

    NOTHING = 0
    COMMIT = 1
    PAUSE = 2
    """Commit, and wait."""
    STOP = 3
    """Commit, and end the run."""


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
        asked: What this rank was asked for; all ranks learn of it in this step.
    """

    step: int
    micro_batches: tuple[MicroBatch, ...]
    corpora: Mapping[str, tuple[int, int]]
    error: str | None = None
    refused: bool = False
    unreachable: bool = False
    asked: AfterStep = AfterStep.NOTHING

    def without(self, corpora: Collection[str]) -> StepBatch:
        """The batch as if these corpora had not been read.
        Raises ``UsageError``: a micro-batch does not say which corpus each of its rows is of."""
        if not any(corpus in corpora for corpus in self.corpora):
            return self
        self._require_named()
        left = [each.without(corpora) for each in self.micro_batches]
        return replace(
            self,
            micro_batches=tuple(each for each in left if each is not None),
            corpora={name: use for name, use in self.corpora.items() if name not in corpora},
        )

    def rerouted(self, routes: Mapping[str, str]) -> StepBatch:
        """The same rows, those of some corpora by other routes.
        ``routes``: corpus → digest of the route that its rows take from now on."""
        if not any(corpus in routes for corpus in self.corpora):
            return self
        self._require_named()
        parts = [part for each in self.micro_batches for part in each.rerouted(routes)]
        return replace(self, micro_batches=tuple(parts))

    def _require_named(self) -> None:
        for each in self.micro_batches:
            if len(each.corpora) != len(each.positions):
                raise UsageError(
                    "a micro-batch does not name its rows' corpora", where=f"step {self.step}"
                )

    def check(
        self,
        streams: Collection[str],
        corpora: Collection[str],
        rerouted: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Compare what the batch says about itself with itself and with the run.

        Args:
            rerouted: Corpus → digest of the route that a gate or a phase sent its rows to.

        Raises:
            Refused: On an unknown stream or corpus, rows that take another route than theirs, or
                sums that differ.
            UsageError: If a tensor has a wrong number of rows, or there is no ``targets``.
        """
        where = f"step {self.step}"
        for micro_batch in self.micro_batches:
            rows = len(micro_batch.positions)
            for route in (micro_batch.stream, micro_batch.route):
                if route not in streams:
                    raise Refused(
                        f"rows of stream {route}, which no route of this run has",
                        where=where,
                        do="Build batches from the batch plan of this run",
                    )
            # Without names its rows may be of any corpus of the batch.
            for corpus in sorted({*micro_batch.corpora} or {*self.corpora}):
                due = rerouted.get(corpus)
                if micro_batch.taken != due:
                    raise Refused(
                        f"rows of corpus {corpus} take route {micro_batch.route}, and "
                        f"{due or 'their own'} is due",
                        where=where,
                        do="Leave it to the run which route rows take",
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
