"""The ``resources`` section of the experiment file."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    model_validator,
)

from govray.governance.formats.bounds import Positive
from govray.governance.submission.submission import PRIORITY, WORD
from govray.train.experiment.sections import Section

ACCELERATOR: Final = "accelerator_type:"
"""What Ray's name of a resource begins with, of which each node with such a GPU has 1."""

ACCELERATOR_SHARE: Final = 0.001
"""What Ray takes of it for each worker that asks for the type."""

QUEUED: Final = frozenset({"pool", "priority", "max_workers", "memory", "placement"})
"""What says when and where a run starts, and nothing of how it trains."""

Placement = Literal["pack", "spread", "strict_pack", "strict_spread"]

_UNITS = {"": 1, **{f"{p}iB": 1 << 10 * n for n, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}B": 1000**n for n, p in enumerate(("k", "M", "G", "T"), 1)}

_WORD = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_PREFIXED = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?" + _WORD[1:]


def _check_workers(value: Any) -> Any:
    """Report in one sentence what a union of two types would report in three."""
    counts = value if isinstance(value, list | tuple) and len(value) == 2 else [value, value]
    if not all(type(each) is int and each >= 1 for each in counts):
        raise ValueError("give a whole number from 1, or [least, most] for an elastic run")
    if counts[0] > counts[1]:
        raise ValueError(f"the least comes first: [{counts[1]}, {counts[0]}]")
    return value


def _check_memory(value: Any) -> Any:
    """Bytes, from a number of them or from text with a unit."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?) ?([kKMGT]i?B)", value)
        if found is None or found[2] not in _UNITS:
            raise ValueError(f"{value[:40]!r} is no amount of memory; write 8GiB, 500MB or bytes")
        return round(float(found[1]) * _UNITS[found[2]])
    return value


def _check_labels(value: dict[str, str]) -> dict[str, str]:
    if len(value) > 16:
        raise ValueError("a node is chosen by 16 labels at most")
    return value


class Resources(Section):
    """What Ray reserves for the workers, and where and when a submitted run starts."""

    num_workers: Annotated[
        Positive | tuple[Positive, Positive],
        BeforeValidator(_check_workers),
        Field(description="a number, or [least, most]: the run goes on with as many as fit"),
    ] = 2
    cpus_per_worker: PositiveFloat = 0.5
    gpus_per_worker: NonNegativeFloat = 0
    memory: Annotated[Positive, BeforeValidator(_check_memory)] | None = Field(
        None,
        description="of each worker, as 8GiB or in bytes; Ray reserves it and does not enforce it",
    )
    placement: Placement = Field(
        "pack",
        description="pack: on few nodes, if that fits; spread: on many; strict_pack: on one node "
        "or not at all; strict_spread: each on a node of its own",
    )
    accelerator_type: str | None = Field(
        None,
        pattern=_WORD,
        description="Ray's name of the GPU that each worker's node has, such as A100 or H100",
    )
    labels: Annotated[
        dict[Annotated[str, Field(pattern=_PREFIXED)], Annotated[str, Field(pattern=_WORD)]],
        AfterValidator(_check_labels),
    ] = Field(
        default_factory=dict,
        description="Ray's labels that each worker's node has, name: value",
    )
    max_workers: Positive | None = Field(
        None,
        description="workers of a search at once, all trials together; a trial waits for its turn",
    )
    pool: str | None = Field(
        None,
        pattern=WORD,
        description="the pool of nodes of a submitted run; not for a run by hand",
    )
    priority: int | None = Field(
        None,
        ge=-PRIORITY,
        le=PRIORITY,
        description="of a submitted run: in its pool's queue the highest goes first",
    )

    @property
    def least(self) -> int:
        """Workers that it starts with at the fewest."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def most(self) -> int:
        """Workers that one run, or one trial, has at most."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    @property
    def worker(self) -> dict[str, float]:
        """What one worker asks Ray for."""
        gpus = {"GPU": self.gpus_per_worker} if self.gpus_per_worker else {}
        kind = self.accelerator_type
        kinds = {ACCELERATOR + kind: ACCELERATOR_SHARE} if kind else {}
        memory = {"memory": float(self.memory)} if self.memory else {}
        return {"CPU": self.cpus_per_worker, **gpus, **memory, **kinds}

    @model_validator(mode="after")
    def _names_a_gpu(self) -> Resources:
        if self.accelerator_type and not self.gpus_per_worker:
            raise ValueError("accelerator_type: a type of GPU; write gpus_per_worker: 1 beside it")
        return self

    @model_validator(mode="after")
    def _is_placed(self) -> Resources:
        if self.placement.startswith("strict_") and self.least < self.most:
            raise ValueError(
                f"placement: an elastic run starts with as many workers as fit, so "
                f"{self.placement} says nothing of it; write pack or spread, or one num_workers"
            )
        return self

    @model_validator(mode="after")
    def _has_room_for_one(self) -> Resources:
        if self.max_workers is not None and self.max_workers < self.most:
            raise ValueError(
                f"max_workers: one run has up to {self.most} workers by num_workers, so give as "
                "many at least"
            )
        return self
