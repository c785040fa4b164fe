"""What a run is asked for, by files in its folder or by the clock.

A request is an empty file. Rank 0 looks for it before each step, and says so in the step's
agreement. So all ranks do what is asked after the same step. On a disk a look costs nothing. On an
object store it takes an exchange, so it is repeated once a second at most.

Ray's controller ends healthy workers when there is room for more, or too many run. Before that, it
asks them to commit, so that no step is run twice. They do, rank 0 answers, and all wait to be
ended. The controller may be gone: workers that nobody ends go on after `WAIT_S`. A starting group
of workers finds neither file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from govray.engine.batch import AfterStep
from govray.storage.atomic_file import write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

STORE_S = 1.0
"""Seconds between two looks at an object store."""

WAIT_S = 30.0
"""How long workers wait to be ended. The controller checks for the answer many times a second."""


@dataclass(frozen=True)
class Request:
    """A file of a run's folder, which says all by being there."""

    file: str

    def make(self, run_folder: Place) -> bool:
        """Ask. Returns whether nobody had asked yet."""
        try:
            write_whole(run_folder / self.file, b"", replace=False)
        except FileExistsError:
            return False
        return True

    def made(self, run_folder: Place) -> bool:
        return (run_folder / self.file).exists()

    def clear(self, run_folder: Place) -> None:
        (run_folder / self.file).unlink(missing_ok=True)


STOP = Request("stop")
"""Commit after the step, and end."""

RESIZE = Request("resize")
"""Commit after the step, and wait to be replaced."""

COMMITTED = Request("resize.committed")
"""The answer: the workers have committed and wait."""


def answer(run_folder: Place) -> None:
    """Tell the controller that the commit is whole, and that its request is heard."""
    COMMITTED.make(run_folder)
    RESIZE.clear(run_folder)


class Requests:
    """What a run is asked for; all ranks have to agree on it before one does it.

    Args:
        minutes: From one commit to the next, if the clock asks for them.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        run_folder: Place,
        minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = run_folder
        self._every = STORE_S if isinstance(run_folder, BucketPath) else 0.0
        self._looked = -math.inf
        self._between = math.inf if minutes is None else minutes * 60
        self._clock = clock
        self._said = AfterStep.NOTHING
        self.committed()

    def committed(self) -> None:
        """A commit has begun: the next is due so many minutes later."""
        self._last = self._clock()

    def look(self, *, may_commit: bool) -> AfterStep:
        """What is asked for now. ``may_commit``: whether a commit after the next step is of use."""
        moment = self._clock()
        if moment - self._looked >= self._every:
            self._looked = moment
            if STOP.made(self._folder):
                self._said = AfterStep.STOP
            else:
                asked = RESIZE.made(self._folder)
                self._said = AfterStep.PAUSE if asked else AfterStep.NOTHING
        due = may_commit and moment - self._last >= self._between
        return max(self._said, AfterStep.COMMIT if due else AfterStep.NOTHING)
