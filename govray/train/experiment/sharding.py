"""The ``sharding`` section of the experiment file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from govray.train.experiment.section import Section


class Sharding(Section):
    """How workers share the model under ``aggregator: fsdp2``; by default all share one copy."""

    replicate: Annotated[int, Field(ge=2)] = Field(
        description="copies of the model (HSDP); the workers of one copy share it, and workers in "
        "a row are of one copy",
    )


def check_copies(workers: int | tuple[int, int], replicate: int) -> None:
    """Accept a number of workers that can hold so many copies of a model that workers share.

    Args:
        workers: A number, or least and most of an elastic run.
        replicate: Copies; 1 goes with any number of workers.
    """
    if replicate == 1:
        return
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if least != most:
        raise ValueError(
            "sharding.replicate: an elastic run may go on with any number of workers between "
            f"{least} and {most}, and copies need a multiple; give one number of workers"
        )
    if least % replicate or least < 2 * replicate:
        raise ValueError(
            f"sharding.replicate: {least} workers can't hold {replicate} copies of a model that "
            f"workers share; give {2 * replicate} workers, or a larger multiple of {replicate}"
        )
