"""Whether a run is asked to stop or to pause, as rank 0 looks for it before each step.

On a disk a look costs nothing. On an object store it takes a request, so it is repeated once a
second at most.
"""

from __future__ import annotations

import math
import time

from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.train.run_folder import resize_request, stop_request

STORE_S = 1.0
"""Seconds between two looks at an object store."""


class Requests:
    """What a run is asked for. ``pause``: whether it is to commit and wait for other workers."""

    def __init__(self, run_folder: Place) -> None:
        self._folder = run_folder
        self._every = STORE_S if isinstance(run_folder, BucketPath) else 0.0
        self._looked = -math.inf
        self.stop = self.pause = False

    def look(self) -> None:
        moment = time.monotonic()
        if moment - self._looked < self._every:
            return
        self._looked = moment
        self.stop = stop_request.requested(self._folder)
        self.pause = resize_request.asked(self._folder)
