"""The exchange that begins every step: what a rank tells, and what the rows of all ranks mean.

It carries status, policy and plan digest, step, and rank 0's time and revocations. It also carries
loss targets per layer group, and rows and loss targets per corpus.

Invariants:

* Every rank sees the same rows and decides by them alone. So all go on, or all raise one error.
* A row has a fixed size, a function of the set-up.
* Counts are int64 and exact.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from govray.engine.steps.expiry import NoLongerValid, ends_of_validity, moment
from govray.engine.steps.rank_failure import RankFailure, status, stop_if_failed
from govray.errors import Malformed, Refused

_NEVER = (1 << 62) - 1
"""The time, in seconds, from which something counts as revoked that is not."""


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


# A rank's row, in words of 64 bits; `FirstExchange.row` writes it. Behind these
# come one word for each of `valid_until`, the further numbers, and the counts.
_STATUS, _STEP, _TIME = range(3)
_POLICY, _PLAN, _LEFT_OUT = slice(3, 7), slice(7, 11), slice(11, 12)
_REVOKED = 12


class FirstExchange:
    """A rank's row of the exchange that begins a step, and what the rows of all ranks say together.

    Rows are lists of int64. How they travel is the engine's.

    Args:
        groups: Layer groups, adapters included.
        numbers: How many further numbers ranks tell, to learn the largest of each.

    Attributes:
        terms: Read at every step, so a rank that swaps its own is found out.
    """

    def __init__(self, terms: Terms, groups: Sequence[str], numbers: int = 0) -> None:
        self.terms = terms
        self._numbers = numbers
        self._groups = tuple(groups)
        self._valid_until = dict(sorted(terms.valid_until.items()))
        self._left_out: frozenset[str] = frozenset()

    def leave_out(self, names: Iterable[str]) -> None:
        """What of ``valid_until`` no longer matters, from the next step on; equal on all ranks."""
        self._left_out = frozenset(names)

    def setup_row(self, setup: Any) -> list[int]:
        """What ranks compare once, when they start.
        ``setup``: anything else (JSON values) that must be equal on all ranks."""
        facts = {
            "groups": self._groups,
            "corpora": tuple(self.terms.corpora),
            "clock": self.terms.clock is not None,
            "validUntil": {name: str(until) for name, until in self._valid_until.items()},
            "decided": self.terms.decided,
            "numbers": self._numbers,
            "setup": setup,
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return [*self._digests(), *_words(f"sha256:{digest}", "setup")]

    def require_one_setup(self, rows: Sequence[Sequence[int]]) -> None:
        """Compare the setup rows of all ranks."""
        _require_equal(rows, "policy digest", slice(0, 4))
        _require_equal(rows, "plan digest", slice(4, 8))
        _require_equal(rows, "digest of model, routes and settings", slice(8, 12))

    def row(
        self,
        rank: int,
        step: int,
        group_targets: Mapping[str, int],
        corpora: Mapping[str, tuple[int, int]],
        failure: RankFailure | None,
        numbers: Sequence[int] = (),
    ) -> list[int]:
        """What this rank tells. The clock and the revocations are read on rank 0 alone.

        Args:
            failure: Why it has no batch, if so; its counts are not read then.
            numbers: As many as were said at the start; fewer are filled up with 0.
        """
        clock = self.terms.clock
        time = int(clock()) if clock and rank == 0 else 0
        counts = [group_targets.get(group, 0) for group in self._groups]
        counts += [n for name in self.terms.corpora for n in corpora.get(name, (0, 0))]
        filled = [*numbers, *[0] * (self._numbers - len(numbers))]
        told = self.terms.revoked() if rank == 0 else {}
        return [
            status(failure),
            step,
            time,
            *self._digests(),
            *self._ends(told),
            *filled,
            *counts,
        ]

    def stop_if_failed(
        self,
        rows: Sequence[Sequence[int]],
        own: RankFailure | None,
        texts: Callable[[str], Sequence[str]],
    ) -> None:
        """Raise the first failed rank's error, as `rank_failure.stop_if_failed`. Collective."""
        stop_if_failed([row[_STATUS] for row in rows], [row[_STEP] for row in rows], own, texts)

    def settle(self, rows: Sequence[Sequence[int]]) -> Agreed:
        """What the rows of all ranks say, where none has failed.

        Args:
            rows: By rank.

        Raises:
            Refused: Ranks differ in policy, plan or step.
            NoLongerValid: Something expired, or was revoked.
        """
        _require_equal(rows, "step", slice(_STEP, _STEP + 1))
        _require_equal(rows, "policy digest", _POLICY)
        _require_equal(rows, "plan digest", _PLAN)
        _require_equal(rows, "what is left out", _LEFT_OUT)
        terms = _REVOKED + len(self._valid_until)
        first = rows[0]
        time, step = first[_TIME], first[_STEP]
        if self.terms.clock and step >= self.terms.decided:
            self._check_validity(time, first[_REVOKED:terms], step)
        columns = [*zip(*(row[terms:] for row in rows), strict=True)]
        counts = [sum(column) for column in columns[self._numbers :]]
        split = len(self._groups)
        pairs = zip(counts[split::2], counts[split + 1 :: 2], strict=True)
        return Agreed(
            time=time,
            group_targets=dict(zip(self._groups, counts, strict=False)),
            corpus_counts={
                name: pair for name, pair in zip(self.terms.corpora, pairs, strict=True) if pair[0]
            },
            most=tuple(max(column) for column in columns[: self._numbers]),
        )

    def _digests(self) -> list[int]:
        return [
            *_words(self.terms.policy_digest, "policy_digest"),
            *_words(self.terms.plan_digest, "plan_digest"),
        ]

    def _ends(self, told: Mapping[str, datetime]) -> list[int]:
        """What is left out, as a number, and when each thing was revoked by rank 0's lists."""
        listed = json.dumps(sorted(self._left_out)).encode()
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


def _words(digest: str, field: str) -> tuple[int, ...]:
    """A ``sha256:…`` digest as four int64."""
    algorithm, _, hexadecimal = digest.partition(":")
    try:
        return struct.unpack(">4q", bytes.fromhex(hexadecimal if algorithm == "sha256" else ""))
    except (ValueError, struct.error):
        raise Malformed(
            f"{digest!r} is no digest", where=field, do="Write sha256: and 64 hexadecimal digits"
        ) from None


def _require_equal(rows: Sequence[Sequence[int]], field: str, part: slice) -> None:
    """Refuse unless all ranks hold the same value, naming those outside the majority."""
    values = [tuple(row[part]) for row in rows]
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
