"""What a run is asked for by its folder or by the clock, as rank 0 looks before each step.

On a disk a look costs nothing. On an object store it takes a request, so it is repeated once a
second at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from govray.engine.batch import AfterStep
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.run_folder import resize_request, stop_request

STORE_S = 1.0
"""Seconds between two looks at an object store."""


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
            if stop_request.requested(self._folder):
                self._said = AfterStep.STOP
            else:
                asked = resize_request.asked(self._folder)
                self._said = AfterStep.PAUSE if asked else AfterStep.NOTHING
        due = may_commit and moment - self._last >= self._between
        return max(self._said, AfterStep.COMMIT if due else AfterStep.NOTHING)
