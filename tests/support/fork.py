"""A process of its own for what may die in it: a fork, so it imports nothing."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

import torch.distributed as dist

KILLED = -signal.SIGKILL


def in_fork(work: Callable[[], object]) -> int:
    """Do the work in a fork; returns its status: 0, 1 after an exception, less if it was killed."""
    assert not dist.is_initialized(), "an earlier test left a group, whose threads no fork has"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_: object, **__: object) -> None:
    """End this process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
