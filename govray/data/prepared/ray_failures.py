"""Which errors are Ray's own: it lost a process, a node or an object, or killed for memory.

The code that ran is not to blame, so another try may go well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray

from govray.errors import GovrayError, InfrastructureFailed


def cause(error: BaseException) -> BaseException:
    """What a task or actor of Ray's raised, without Ray's wrapping."""
    while isinstance(error, ray.exceptions.RayTaskError) and error.cause is not None:
        error = error.cause
    return error


def lost_by_ray(error: BaseException) -> bool:
    """Whether Ray failed, and no task's own code: its memory killer, a dead worker or node."""
    code = ray.exceptions.RayTaskError | ray.exceptions.UserCodeException
    raised = cause(error)
    # A bare one stands for a task's own error that could not be pickled.
    bare = type(raised) is ray.exceptions.RayError
    return isinstance(raised, ray.exceptions.RayError) and not (bare or isinstance(raised, code))


@contextmanager
def ray_failures_named(where: str) -> Iterator[None]:
    """Raise what Ray lost as `InfrastructureFailed`, and a task's `GovrayError` as itself."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raised = cause(error)
        if isinstance(raised, GovrayError):
            raise raised from error
        if not lost_by_ray(error):
            raise
        raise InfrastructureFailed(
            f"Ray failed: {type(raised).__name__}: {raised}".splitlines()[0],
            where=where,
            do="Give the same command again; if Ray killed for memory, give it more, or fewer CPUs",
        ) from error
