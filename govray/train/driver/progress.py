"""A run's progress, reported to the driver.

Rank 0 sends each step's metrics to a small actor without waiting, and the driver polls it. A lost
message only skips a display update: the ledger has what a run did.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

POLL_S = 0.2

StepCallback = Callable[[int, Mapping[str, float]], None]

_log = logging.getLogger(__name__)


@ray.remote(num_cpus=0)
class Latest:
    """Holds the newest step, its metrics, and the newest workers' placement group."""

    def __init__(self) -> None:
        self._step: tuple[int, dict[str, float]] | None = None
        self._group: Any = None

    def stand(self, group: Any) -> None:
        """Take a worker's placement group."""
        self._group = group

    def group(self) -> Any:
        """The placement group of the newest workers, if they reported one."""
        return self._group

    def put(self, step: int, metrics: dict[str, float]) -> None:
        self._step = (step, metrics)

    def get(self) -> tuple[int, dict[str, float]] | None:
        return self._step


class ProgressWatch:
    """Context manager on the driver that calls back with each new step.

    A callback that raises is logged and not called again; the run goes on.
    """

    def __init__(self, on_step: StepCallback) -> None:
        self.actor: Any = Latest.remote()  # type: ignore[attr-defined]
        self._on_step = on_step
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="govray-progress", daemon=True)

    def __enter__(self) -> ProgressWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        ray.kill(self.actor)

    def _poll(self) -> None:
        seen: int | None = None
        while True:
            last = self._stop.wait(POLL_S)
            try:
                newest = ray.get(self.actor.get.remote(), timeout=5)
            except ray.exceptions.GetTimeoutError:  # a busy machine
                newest = None
            except Exception:  # the cluster is shutting down
                return
            if newest and newest[0] != seen:
                seen = newest[0]
                try:
                    self._on_step(*newest)
                except Exception:
                    _log.exception("on_step failed at step %d and is called no more", seen)
                    return
            if last:
                return
