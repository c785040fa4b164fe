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

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from govray.engine.collective.expiry import NoLongerValid, ends_of_validity, moment
from govray.errors import (
    GovrayError,
    InfrastructureFailed,
    Malformed,
    RankFailed,
    Refused,
    UsageError,
)

_KINDS: tuple[type[GovrayError], ...] = (RankFailed, Refused, UsageError, InfrastructureFailed)
"""What a status means: 0 is well, i + 1 is an error of kind i."""

_TEXT_BYTES = 4096

_NEVER = (1 << 62) - 1
"""The time, in seconds, from which something counts as revoked that is not."""


@dataclass(frozen=True)
class RankFailure:
    """Why this rank cannot go on.

    Attributes:
        text: For people.
        kind: The error that all ranks raise.
        cause: What was caught here, if anything.
    """

    text: str
    kind: type[GovrayError] = RankFailed
    cause: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException) -> RankFailure:
        """A caught error; one of ours keeps its kind, for refusals are never retried."""
        for kind in (Refused, UsageError, InfrastructureFailed):
            if isinstance(error, kind):
                return cls(str(error), kind, error)
        said = str(error)
        if not isinstance(error, GovrayError):
            said = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return cls(said, RankFailed, error)


class StoppedTogether(BaseException):
    """All ranks have raised this error together.

    Not an `Exception`, for a loss function's ``except Exception`` must not swallow it.
    """

    def __init__(self, error: GovrayError) -> None:
        super().__init__(str(error))
        self.error = error


class FirstFailure:
    """What went wrong first on this rank, kept until an exchange tells all ranks.

    Attributes:
        failure: It, or None.
    """

    def __init__(self) -> None:
        self.failure: RankFailure | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, whatever is raised ends the block and is kept: all ranks must hear of it."""
        try:
            yield
        except StoppedTogether:
            pass  # they have heard
        except BaseException as error:
            self.failure = self.failure or RankFailure.of(error)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What every step of a run rests on; equal on all ranks, but for what only rank 0 reads.

    Args:
        policy_digest: ``sha256:…`` of the depth policy in force.
        plan_digest: ``sha256:…`` of the batch plan.
        corpora: Names of the run's corpora.
        clock: Seconds since the epoch; only rank 0's is read, once a step.
        valid_until: What expires, by name, and when (exclusive); needs the clock.
        revoked: What is revoked, by a name of ``valid_until``, and from when on; only rank 0's
            is read, once a step.
        decided: Steps below it repeat what was decided before, whatever the clock says.
    """

    policy_digest: str
    plan_digest: str
    corpora: Sequence[str]
    clock: Callable[[], float] | None = None
    valid_until: Mapping[str, datetime] = field(default_factory=dict)
    revoked: Callable[[], Mapping[str, datetime]] = dict
    decided: int = 0


@dataclass(frozen=True)
class Agreed:
    """What holds on all ranks in this step.

    Attributes:
        time: Rank 0's clock, in whole seconds since the epoch; 0 without a clock.
        group_targets: N_l, the loss targets per layer group over all ranks.
        corpus_counts: (rows, loss targets) per corpus over all ranks, without
            corpora that have no rows in this step.
        most: The largest over all ranks, of each further number.
    """

    time: int
    group_targets: dict[str, int]
    corpus_counts: dict[str, tuple[int, int]]
    most: tuple[int, ...]


# A rank's row of the first exchange, in words of 64 bits; `Agreement.start` writes it. Behind these
# come one word for each of `valid_until`, the further numbers, and the counts.
_STATUS, _STEP, _TIME = range(3)
_POLICY, _PLAN, _LEFT_OUT = slice(3, 7), slice(7, 11), slice(11, 12)
_REVOKED = 12


class Agreement:
    """The exchanges of one run on this rank.

    Making one is collective: all ranks must.

    Args:
        terms: What the run's steps rest on.
        groups: Layer groups, adapters included.
        setup: Anything else (JSON values) that must be equal on all ranks.
        numbers: How many further numbers ranks tell, to learn the largest of each.
        timeout: How long an exchange waits for the others; None for torch's own.

    Attributes:
        waited: Seconds that this rank has waited for the others so far.

    Raises:
        Malformed: A digest is not ``sha256:`` and 64 hexadecimal digits.
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
        self.terms = terms
        self.waited = 0.0
        self._numbers = numbers
        self._groups = tuple(groups)
        self._valid_until = dict(sorted(terms.valid_until.items()))
        self._left_out: frozenset[str] = frozenset()
        self._group: dist.ProcessGroup | None = None
        self.rank, self.world_size = 0, 1
        if dist.is_initialized():
            self._group = dist.new_group(backend="gloo", timeout=timeout)
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        facts = {
            "groups": self._groups,
            "corpora": tuple(terms.corpora),
            "clock": terms.clock is not None,
            "validUntil": {name: str(until) for name, until in self._valid_until.items()},
            "decided": terms.decided,
            "numbers": numbers,
            "setup": setup,
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        own = [*self._digests(), *_words(f"sha256:{digest}", "setup")]
        rows = self.exchange(torch.tensor(own, dtype=torch.int64))
        _require_equal(rows, "policy digest", slice(0, 4))
        _require_equal(rows, "plan digest", slice(4, 8))
        _require_equal(rows, "digest of model, routes and settings", slice(8, 12))

    def leave_out(self, names: Iterable[str]) -> None:
        """What of ``valid_until`` no longer matters, from the next step on; equal on all ranks."""
        self._left_out = frozenset(names)

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
            step: The step that this rank is about to do.
            group_targets: This rank's loss targets per layer group.
            corpora: This rank's (rows, loss targets) per corpus.
            failure: Why it has no batch, if so; its counts are not read then.
            numbers: As many as were said at the start; fewer are filled up with 0.
        """
        clock = self.terms.clock
        time = int(clock()) if clock and self.rank == 0 else 0
        counts = [group_targets.get(group, 0) for group in self._groups]
        counts += [n for name in self.terms.corpora for n in corpora.get(name, (0, 0))]
        filled = [*numbers, *[0] * (self._numbers - len(numbers))]
        own = [_status(failure), step, time, *self._digests(), *self._terms(), *filled, *counts]
        return Pending(self, self._gather(torch.tensor(own, dtype=torch.int64)), failure)

    def conclude(self, step: int, sums: Tensor, failure: RankFailure | None) -> Tensor:
        """The second status: go on together, or stop together. Collective.

        Args:
            step: The agreed step.
            sums: This rank's, float64, on the CPU, of one shape on all ranks.
            failure: What went wrong here in forward or backward, if anything.

        Returns:
            The sums over all ranks, added in rank order; shape, dtype and device as given.

        Raises:
            GovrayError: The first failed rank's error, the same on all ranks.
        """
        status = torch.tensor([_status(failure)], dtype=torch.float64)
        rows = self.exchange(torch.cat([status, sums.flatten()]))
        self._stop_if_failed([int(row[0]) for row in rows], [step] * len(rows), failure)
        return torch.stack(rows)[:, 1:].sum(0).view(sums.shape)

    def confirm(self, step: int, failure: RankFailure | None) -> None:
        """The third status: all ranks have moved their weights, or none goes on. Collective.

        Args:
            step: The agreed step.
            failure: What went wrong here in the optimizer, if anything.

        Raises:
            GovrayError: The first failed rank's error, the same on all ranks.
        """
        rows = self.exchange(torch.tensor([_status(failure)], dtype=torch.int64))
        self._stop_if_failed(
            [int(row) for row in rows],
            [step] * len(rows),
            failure,
            do="All ranks stopped, but some may have moved their weights. Go on from the last "
            "checkpoint; that rank's log has more",
        )

    def exchange(self, row: Tensor) -> list[Tensor]:
        """Every rank's row, by rank. Collective.

        Args:
            row: Of one shape and dtype on all ranks, on the CPU.

        Raises:
            InfrastructureFailed: Another rank is gone.
        """
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

    def _digests(self) -> list[int]:
        return [
            *_words(self.terms.policy_digest, "policy_digest"),
            *_words(self.terms.plan_digest, "plan_digest"),
        ]

    def _stop_if_failed(
        self,
        statuses: Sequence[int],
        steps: Sequence[int],
        own: RankFailure | None,
        do: str = "All ranks stopped before any weight moved; that rank's log has more",
    ) -> None:
        failed = [rank for rank, status in enumerate(statuses) if status]
        if not failed:
            return
        # All ranks are here, because all saw the same statuses: now the text can travel.
        first = failed[0]
        sent = self.texts(own.text if own else "")[first]
        cause = own.cause if own else None
        if cause is not None and not isinstance(cause, Exception):
            raise cause  # what ends a process, such as SystemExit, ends it: the others know now
        others = f" (so did rank {', '.join(map(str, failed[1:]))})" if failed[1:] else ""
        raise _KINDS[statuses[first] - 1](
            sent + others, where=f"rank {first}, step {steps[first]}", do=do
        ) from cause

    def _settle(self, rows: Sequence[Tensor], own: RankFailure | None) -> Agreed:
        steps = [int(row[_STEP]) for row in rows]
        self._stop_if_failed([int(row[_STATUS]) for row in rows], steps, own)
        _require_equal(rows, "step", slice(_STEP, _STEP + 1))
        _require_equal(rows, "policy digest", _POLICY)
        _require_equal(rows, "plan digest", _PLAN)
        terms = _REVOKED + len(self._valid_until)
        _require_equal(rows, "what is left out", _LEFT_OUT)
        time = int(rows[0][_TIME])
        if self.terms.clock and steps[0] >= self.terms.decided:
            self._check_validity(time, rows[0][_REVOKED:terms].tolist(), steps[0])
        rest = torch.stack(list(rows))[:, terms:]
        most = rest[:, : self._numbers].amax(0).tolist()
        counts = rest[:, self._numbers :].sum(0).tolist()
        split = len(self._groups)
        pairs = zip(counts[split::2], counts[split + 1 :: 2], strict=True)
        return Agreed(
            time=time,
            group_targets=dict(zip(self._groups, counts, strict=False)),
            corpus_counts={
                name: pair for name, pair in zip(self.terms.corpora, pairs, strict=True) if pair[0]
            },
            most=tuple(most),
        )

    def _terms(self) -> list[int]:
        """What is left out, as a number, and when each thing was revoked by rank 0's lists."""
        listed = json.dumps(sorted(self._left_out)).encode()
        told = self.terms.revoked() if self.rank == 0 else {}
        revoked = [
            int(told[name].timestamp()) if name in told else _NEVER for name in self._valid_until
        ]
        return [_words(f"sha256:{hashlib.sha256(listed).hexdigest()}", "left out")[0], *revoked]

    def _check_validity(self, time: int, revoked: Sequence[int], step: int) -> None:
        told = {
            name: moment(since)
            for name, since in zip(self._valid_until, revoked, strict=True)
            if since != _NEVER
        }
        if found := ends_of_validity(moment(time), self._valid_until, told, self._left_out):
            raise NoLongerValid.of(found, step=step, time=moment(time))


class Pending:
    """A first exchange under way.

    Args:
        agreement: The run's.
        rows: Waits for the rows of all ranks, each of shape (words,), int64, on the CPU.
        failure: Why this rank has no batch, if so.
    """

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


def _status(failure: RankFailure | None) -> int:
    return _KINDS.index(failure.kind) + 1 if failure else 0


def _words(digest: str, field: str) -> tuple[int, ...]:
    """A ``sha256:…`` digest as four int64."""
    algorithm, _, hexadecimal = digest.partition(":")
    try:
        return struct.unpack(">4q", bytes.fromhex(hexadecimal if algorithm == "sha256" else ""))
    except (ValueError, struct.error):
        raise Malformed(
            f"{digest!r} is no digest", where=field, do="Write sha256: and 64 hexadecimal digits"
        ) from None


def _require_equal(rows: Sequence[Tensor], field: str, part: slice) -> None:
    """Refuse unless all ranks hold the same value, naming those outside the majority."""
    values = [tuple(row[part].tolist()) for row in rows]
    usual = Counter(values).most_common(1)[0][0]
    odd = [rank for rank, value in enumerate(values) if value != usual]
    if odd:
        raise Refused(
            f"{field} differs between ranks: {_shown(values[odd[0]])} here, {_shown(usual)} "
            f"on rank {values.index(usual)}",
            where=f"rank {', '.join(map(str, odd))}",
            do="Start all ranks from one verified order",
        )


def _shown(value: tuple[int, ...]) -> str:
    return str(value[0]) if len(value) == 1 else f"sha256:{struct.pack('>4q', *value).hex()}"
