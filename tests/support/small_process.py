"""A process that has imported little, for tests that fork again and again."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from tests.support.tree import ROOT


@contextmanager
def small_process() -> Iterator[Callable[[Callable[[], object]], int]]:
    """A function that calls what it gets in a fork, and returns the status with which that ended.

    The status is 1 if the call raised, and ``-n`` if signal ``n`` killed it. What it gets travels
    by pickle: a function at the top level of a module, or a partial of one.
    """
    ours, theirs = Pipe()
    with ours, theirs:
        source = f"from {__name__} import _serve; _serve({theirs.fileno()})"
        process = subprocess.Popen(
            [sys.executable, "-c", source], cwd=ROOT, pass_fds=[theirs.fileno()]
        )
        theirs.close()

        def status_of(act: Callable[[], object]) -> int:
            ours.send(act)
            return ours.recv()

        try:
            yield status_of
        finally:
            ours.close()
            process.wait(30)


def _serve(descriptor: int) -> None:
    with Connection(descriptor) as pipe, suppress(EOFError):
        while True:
            act = pickle.loads(pipe.recv_bytes())  # here, so that a module is imported once
            child = os.fork()
            if child == 0:
                code = 1
                with suppress(BaseException):
                    act()
                    code = 0
                os._exit(code)
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
