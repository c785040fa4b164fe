"""The ``profiling`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from govray.train.experiment.section import Section

MOST_STEPS = 100
"""Of one trace: it is written whole, and a viewer loads it whole."""


def _check_steps(value: str) -> str:
    first, colon, end = value.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal()):
        raise ValueError(f"{value!r} is no range of steps, write '10:20' for steps 10 to 19")
    if not 0 < int(end) - int(first) <= MOST_STEPS:
        raise ValueError(f"{value!r} has {int(end) - int(first)} steps, give 1 to {MOST_STEPS}")
    return value


class Profiling(Section):
    """Steps that torch's profiler traces, on rank 0."""

    steps: Annotated[str, AfterValidator(_check_steps)] = Field(
        description="'10:20' traces steps 10 to 19, counted from 0"
    )

    @property
    def range(self) -> range:
        """The steps."""
        first, _, end = self.steps.partition(":")
        return range(int(first), int(end))
