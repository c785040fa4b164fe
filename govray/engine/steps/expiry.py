"""What no longer holds at an agreed time, and the error that carries it.

Every rank computes this from equal data: rank 0's time and revocations in the step's agreement, and
the dates that all began with. So all stop, or all leave the same corpora out, before any weight
moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from govray.errors import Refused


@dataclass(frozen=True)
class EndOfValidity:
    """One thing that no longer holds.

    Attributes:
        name: Under which its date is known.
        reason: Whichever came first; ``expired`` if they came together.
        since: The first instant at which it no longer held.
    """

    name: str
    reason: Literal["expired", "revoked"]
    since: datetime

    def __str__(self) -> str:
        word = "valid until" if self.reason == "expired" else "since"
        return f"{self.name} {self.reason}: {word} {self.since.isoformat()}"


class NoLongerValid(Refused):
    """Something that a step needs no longer holds; every rank raises the same.

    Attributes:
        time: The agreed time.
        ends: What ended, by name. Empty once the error has crossed a process boundary.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        do: str | None = None,
        time: datetime | None = None,
        ends: tuple[EndOfValidity, ...] = (),
    ) -> None:
        super().__init__(what, where=where, do=do)
        self.time = time
        self.ends = ends

    @classmethod
    def of(cls, ends: tuple[EndOfValidity, ...], *, step: int, time: datetime) -> NoLongerValid:
        """The error for at least one end."""
        return cls(
            f"{', '.join(map(str, ends))}, now {time.isoformat()}",
            where=f"step {step}",
            do="Sign a new one, or resume without it. The steps done so far stay valid",
            time=time,
            ends=ends,
        )


def ends_of_validity(
    time: datetime,
    valid_until: Mapping[str, datetime],
    revoked: Mapping[str, datetime],
    left_out: Set[str] = frozenset(),
) -> tuple[EndOfValidity, ...]:
    """What no longer holds at ``time``, sorted by name.

    Args:
        time: The agreed time, aware.
        valid_until: What expires, by name, and when (exclusive).
        revoked: What is revoked, by a name of ``valid_until``, and from when on.
        left_out: Names that no longer matter.
    """
    found = []
    for name in sorted(valid_until.keys() - left_out):
        until, since = valid_until[name], revoked.get(name)
        if since is not None and since < until and time >= since:
            found.append(EndOfValidity(name, "revoked", since))
        elif time >= until:
            found.append(EndOfValidity(name, "expired", until))
    return tuple(found)


def moment(seconds: int) -> datetime:
    """Whole seconds since the epoch, as an aware time."""
    return datetime.fromtimestamp(seconds, UTC)
