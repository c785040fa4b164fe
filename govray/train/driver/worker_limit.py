"""The limit that a queue has set for a run's workers, as the run's controller sees it.

The file is `govray.governance.submission.worker_cap`. One that is no such file changes nothing: the
limit before it goes on, and the event log says so, once for each. One that is gone changes nothing
either. Who lifts a limit writes a higher one.
"""

from __future__ import annotations

import contextlib
import math
import time

from govray.errors import Malformed
from govray.governance.submission.worker_cap import ANSWER, REQUEST, WorkerCap, read_cap, write_cap
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.requests import STORE_S


class WorkerLimit:
    """The latest limit that could be read."""

    def __init__(self, run_folder: Place) -> None:
        self._folder = run_folder
        self._every = STORE_S if isinstance(run_folder, BucketPath) else 0.0
        self._looked = -math.inf
        self._cap: WorkerCap | None = None
        self._answered: WorkerCap | None = None
        self._ignored: str | None = None

    def look(self) -> bool:
        """Look again, if it is time; True if the limit has changed."""
        moment = time.monotonic()
        if moment - self._looked < self._every:
            return False
        self._looked = moment
        try:
            found = read_cap(self._folder, REQUEST)
        except Malformed as error:
            if self._ignored != error.what:
                self._ignored = error.what
                events.append(self._folder, events.LimitIgnored(at=now(), what=error.what[:4096]))
            return False
        except OSError:
            return False
        self._ignored = None
        if found is None or found == self._cap:
            return False
        self._cap = found
        events.append(self._folder, events.WorkersLimited(at=now(), most=found.most))
        return True

    def most(self, least: int, most: int) -> int:
        """How many workers the run may have at most.
        ``least``: of the run itself. No limit goes below it."""
        return most if self._cap is None else max(least, min(self._cap.most, most))

    def obeyed(self, workers: int) -> None:
        """Answer the queue that no more workers run than it allows.
        The caller will start no more either. A limit that ``workers`` are above has no answer."""
        cap = self._cap
        if cap is None or cap == self._answered or workers > cap.most:
            return
        with contextlib.suppress(OSError):  # then the next call answers
            write_cap(self._folder, ANSWER, cap)
            self._answered = cap
