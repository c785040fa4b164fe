"""The memory of a process that holds a secret, kept from others of its account, and from a core.

Attestor, service, queue, alerts and each verb that signs call this. The driver of a run does not:
Ray's agent counts the files that its processes have open, and fails where it may not. By hand that
driver runs the run's code beside the key either way.

Sources: prctl(2), PR_SET_DUMPABLE; ptrace(2), "Ptrace access mode checking"; setrlimit(2).
"""

from __future__ import annotations

import ctypes
import os
import sys

_DUMPABLE = 4


def keep_memory() -> None:
    """Let no other process of this account read this one's memory or environment from here on, and
    leave no core. Only Linux can; elsewhere nothing happens.

    An administrator still can. A program that is started is as open as any.
    """
    if sys.platform != "linux":
        return
    import resource  # of Unix alone

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # of what it starts, too
    prctl(_DUMPABLE, 0, "PR_SET_DUMPABLE")


def prctl(option: int, value: int, name: str, more: int = 0) -> None:
    """prctl(2). Raises ``OSError`` with the option's ``name``: the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    given = [ctypes.c_ulong(each) for each in (value, more, 0, 0)]
    if libc.prctl(option, *given) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
