"""A schedule of faults, as a pure function of its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

MAX_STEPS = 12
COMMIT_EVERY = 3
WORLD = 2

Kind = Literal[
    "kill_worker",
    "kill_driver",
    "fill_disk",
    "flip_checkpoint",
    "cut_checkpoint",
    "stop_worker",
]
Moment = Literal[
    "before_first_step",
    "step",
    "collective",
    "write",
    "before_rename",
    "after_rename",
    "ledger",
    "resume",
]

PLACES: tuple[tuple[Kind, Moment], ...] = (
    ("kill_worker", "step"),
    ("kill_driver", "collective"),
    ("kill_worker", "before_rename"),
    ("flip_checkpoint", "step"),
    ("kill_driver", "step"),
    ("kill_worker", "write"),
    ("fill_disk", "write"),
    ("kill_worker", "collective"),
    ("kill_driver", "write"),
    ("cut_checkpoint", "step"),
    ("kill_worker", "ledger"),
    ("kill_driver", "before_rename"),
    ("kill_worker", "resume"),
    ("stop_worker", "collective"),
    ("kill_worker", "after_rename"),
    ("flip_checkpoint", "resume"),
    ("kill_worker", "before_first_step"),
    ("kill_driver", "ledger"),
    ("fill_disk", "ledger"),
    ("kill_driver", "resume"),
)
"""Where a first fault may strike."""

_LATE = (2 * COMMIT_EVERY + 1, MAX_STEPS)
"""Steps by which a commit is there, however long its write takes."""
_COMMITS: tuple[Moment, ...] = ("write", "before_rename", "after_rename")
_RANK_0: tuple[Moment, ...] = (*_COMMITS, "ledger")


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: Kind
    moment: Moment
    step: int
    rank: int
    draw: int
    file: str | None = None


@dataclass(frozen=True)
class Schedule:
    """The faults of one run, in the order in which they are meant to happen."""

    seed: int
    faults: tuple[Fault, ...]
    keep: int = 1
    weakened: bool = False

    @classmethod
    def of(cls, seed: int) -> Schedule:
        draw = random.Random(seed)
        first = PLACES[seed % len(PLACES)]
        more = [draw.choice(PLACES) for _ in range(draw.randrange(3))]
        places = [first, *more]
        faults = [_fault(draw, *place) for place in places]
        if any(moment == "resume" for _, moment in places):
            # Nothing is resumed unless an attempt ended after a commit.
            faults.append(Fault("kill_worker", "step", draw.randrange(*_LATE), 0, 0))
        return cls(seed, tuple(sorted(faults, key=_order)), keep=draw.randint(1, 3))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schedule:
        faults = tuple(Fault(**fault) for fault in value["faults"])
        return cls(**{**value, "faults": faults})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def kills_driver(self) -> int:
        """How often the same command has to be given again."""
        return sum(fault.kind == "kill_driver" for fault in self.faults)

    def __str__(self) -> str:
        faults = (f"{f.kind} {f.moment} step {f.step} rank {f.rank}" for f in self.faults)
        return f"seed {self.seed}: {'; '.join(faults)}"


def _fault(draw: random.Random, kind: Kind, moment: Moment) -> Fault:
    if moment in _COMMITS:
        step = draw.randrange(COMMIT_EVERY, MAX_STEPS + 1, COMMIT_EVERY)
    elif moment in ("before_first_step", "resume"):
        step = 0
    elif kind in ("flip_checkpoint", "cut_checkpoint"):
        step = draw.randrange(*_LATE)
    else:
        step = draw.randrange(MAX_STEPS)
    rank = 0 if moment in _RANK_0 else draw.randrange(WORLD)
    return Fault(kind, moment, step, rank, draw.getrandbits(32))


def _order(fault: Fault) -> tuple[int, int]:
    return (fault.moment == "resume", fault.step)
