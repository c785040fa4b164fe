"""What ranks tell each other before any weight moves.

Every optimizer step has two exchanges, on a gloo process group of their own, so
that they never queue behind gradients:

1. ``Agreement.start`` … ``Pending.wait``, overlapping the forward pass and awaited before the first
   gradient collective. It carries status, policy and plan digest, step, and rank 0's time and
   revocations. It also carries loss targets per layer group, and rows and loss targets per corpus.
2. ``Agreement.conclude``, once gradients are summed: status again (an exception in
   forward or backward), and the sums behind the step's losses.

Invariants:

* Every rank sees the same rows and decides by them alone. So either all ranks go on, or all
  raise the same error, which names a rank. None is left waiting.
* Exchanges have a fixed size, a function of the set-up. Ranks compare their
  set-ups once, when they start: two sizes in one gather would not fail cleanly.
* An error's text travels only after all ranks have agreed that there is one.
* ``SystemExit`` and ``KeyboardInterrupt`` are told to the others like any error. The rank that
  they came from raises them as they are.
* Counts are int64 and exact.

A rank that hangs without failing is noticed by the process group's timeout only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from govray.engine.steps.first_exchange import Agreed, FirstExchange, Terms
from govray.engine.steps.rank_failure import (
    FirstFailure,
    RankFailure,
    StoppedTogether,
    status,
    stop_if_failed,
)
from govray.errors import GovrayError, InfrastructureFailed

__all__ = [
    "Agreed",
    "Agreement",
    "FirstFailure",
    "Pending",
    "RankFailure",
    "StoppedTogether",
    "Terms",
    "lost_peers_reported",
]

_TEXT_BYTES = 4096

_UNMOVED = "All ranks stopped before any weight moved; that rank's log has more"
_MOVED = (
    "All ranks stopped, but some may have moved their weights. Go on from the last checkpoint; "
    "that rank's log has more"
)


class Agreement:
    """The exchanges of one run on this rank.

    Making one is collective: all ranks must.

    Args:
        groups: Layer groups, adapters included.
        setup: Anything else (JSON values) that must be equal on all ranks.
        numbers: How many further numbers ranks tell, to learn the largest of each.
        timeout: How long an exchange waits for the others; None for torch's own.

    Attributes:
        waited: Seconds that this rank has waited for the others so far.

    Raises:
        Refused: Ranks hold different policies, plans or set-ups.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        groups: Sequence[str] = (),
        setup: Any = None,
        numbers: int = 0,
        timeout: timedelta | None = None,
    ) -> None:
        self.waited = 0.0
        self._first = FirstExchange(terms, groups, numbers)
        self._group: dist.ProcessGroup | None = None
        self.rank, self.world_size = 0, 1
        if dist.is_initialized():
            self._group = dist.new_group(backend="gloo", timeout=timeout)
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        own = torch.tensor(self._first.setup_row(setup), dtype=torch.int64)
        self._first.require_one_setup([row.tolist() for row in self.exchange(own)])

    @property
    def terms(self) -> Terms:
        """What the run's steps rest on."""
        return self._first.terms

    @terms.setter
    def terms(self, terms: Terms) -> None:
        self._first.terms = terms

    def leave_out(self, names: Iterable[str]) -> None:
        """What of ``valid_until`` no longer matters, from the next step on; equal on all ranks."""
        self._first.leave_out(names)

    def start(
        self,
        step: int,
        group_targets: Mapping[str, int],
        corpora: Mapping[str, tuple[int, int]],
        failure: RankFailure | None,
        numbers: Sequence[int] = (),
    ) -> Pending:
        """Tell the others what this rank brings; returns at once. Collective.

        Args:
            failure: Why it has no batch, if so; its counts are not read then.
            numbers: As many as were said at the start; fewer are filled up with 0.
        """
        own = self._first.row(self.rank, step, group_targets, corpora, failure, numbers)
        return Pending(self, self._gather(torch.tensor(own, dtype=torch.int64)), failure)

    def conclude(
        self, step: int, sums: Tensor, failure: RankFailure | None, *, moved: bool = False
    ) -> Tensor:
        """The second status: go on together, or stop together. Collective.

        Args:
            sums: This rank's, float64, on the CPU, of one shape on all ranks.
            moved: Whether weights may have moved.

        Returns:
            The sums over all ranks, added in rank order; shape, dtype and device as given.

        Raises:
            GovrayError: The first failed rank's error, the same on all ranks.
        """
        own = torch.tensor([status(failure)], dtype=torch.float64)
        rows = self.exchange(torch.cat([own, sums.flatten()]))
        statuses = [int(row[0]) for row in rows]
        do = _MOVED if moved else _UNMOVED
        stop_if_failed(statuses, [step] * len(rows), failure, self.texts, do)
        return torch.stack(rows)[:, 1:].sum(0).view(sums.shape)

    def confirm(self, step: int, failure: RankFailure | None) -> None:
        """The third status: all ranks have moved their weights, or none goes on. Collective."""
        self.conclude(step, torch.zeros(0, dtype=torch.float64), failure, moved=True)

    def exchange(self, row: Tensor) -> list[Tensor]:
        """Every rank's row, by rank. Collective.
        ``row``: of one shape and dtype on all ranks, on the CPU."""
        return self._gather(row)()

    def texts(self, text: str) -> list[str]:
        """Every rank's text, by rank, cut where it is long. Collective."""
        own = text.encode()[:_TEXT_BYTES]
        padded = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        padded[: len(own)] = torch.tensor(list(own), dtype=torch.uint8)
        rows = self.exchange(padded)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rows]

    def _gather(self, row: Tensor) -> Callable[[], list[Tensor]]:
        """Send a row; the result waits for all ranks' rows. Collective."""
        if self._group is None:
            return lambda: [row]
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        with lost_peers_reported():
            work = dist.all_gather(rows, row, group=self._group, async_op=True)

        def wait() -> list[Tensor]:
            began = perf_counter()
            with lost_peers_reported():
                work.wait()
            self.waited += perf_counter() - began
            return rows

        return wait

    def _settle(self, rows: Sequence[Tensor], own: RankFailure | None) -> Agreed:
        told = [row.tolist() for row in rows]
        self._first.stop_if_failed(told, own, self.texts)
        return self._first.settle(told)


class Pending:
    """A first exchange under way.
    ``rows``: waits for the rows of all ranks, each of shape (words,), int64, on the CPU."""

    def __init__(
        self, agreement: Agreement, rows: Callable[[], list[Tensor]], failure: RankFailure | None
    ) -> None:
        self._agreement = agreement
        self._rows = rows
        self._failure = failure
        self._agreed: Agreed | None = None
        self._error: GovrayError | None = None

    def wait(self) -> Agreed:
        """Block until all ranks have spoken; later calls answer as the first did. Collective.

        Raises:
            RankFailed: A rank has no batch, or is gone.
            Refused: Ranks differ in policy, plan or step.
            NoLongerValid: Something expired, or was revoked.
        """
        if self._error is not None:
            raise self._error
        if self._agreed is None:
            try:
                self._agreed = self._agreement._settle(self._rows(), self._failure)
            except GovrayError as error:  # settling is collective: never twice
                self._error = error
                raise
        return self._agreed


@contextmanager
def lost_peers_reported() -> Iterator[None]:
    """Around a collective: torch raises a bare RuntimeError when a peer is gone."""
    try:
        yield
    except RuntimeError as error:
        raise InfrastructureFailed(
            "a collective broke off, because another rank is gone or out of reach",
            where=f"rank {dist.get_rank()}",
            do=f"See the other ranks' logs. torch says: {error}",
        ) from error
