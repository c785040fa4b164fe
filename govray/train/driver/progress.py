"""A run's progress, reported to the driver.

Rank 0 sends each step's metrics to a small actor without waiting, and the driver polls it. A lost
message only skips a display update: the ledger has what a run did.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import ray

POLL_S = 0.2
REPORTS = 10_000
"""Reported steps that wait for the driver; the oldest are lost beyond."""

StepCallback = Callable[[int, Mapping[str, float]], None]

_log = logging.getLogger(__name__)


@ray.remote(num_cpus=0)
class Latest:
    """Holds the newest step and its metrics."""

    def __init__(self) -> None:
        self._step: tuple[int, dict[str, float]] | None = None
        self._reports: deque[tuple[int, dict[str, float]]] = deque(maxlen=REPORTS)

    def put(self, step: int, metrics: dict[str, float]) -> None:
        self._step = (step, metrics)

    def report(self, step: int, metrics: dict[str, float]) -> None:
        """Keep what is known of a step until it is taken."""
        self._reports.append((step, metrics))

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """The reports since the last time, oldest first."""
        taken = list(self._reports)
        self._reports.clear()
        return taken

    def get(self) -> tuple[int, dict[str, float]] | None:
        return self._step


class ProgressWatch:
    """Context manager on the driver that calls back with each new step.

    A callback that raises costs that step: it is logged, and the next one is told. The run goes on.

    Args:
        on_report: Gets every step that was reported; None asks for none.
    """

    def __init__(self, on_step: StepCallback, on_report: StepCallback | None = None) -> None:
        self.actor: Any = Latest.remote()  # type: ignore[attr-defined]
        self._on_step = on_step
        self._on_report = on_report
        self._failed = False
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
                reports = ray.get(self.actor.take.remote(), timeout=5) if self._on_report else []
            except ray.exceptions.GetTimeoutError:  # a busy machine
                newest, reports = None, []
            except Exception:  # the cluster is shutting down
                return
            for report in reports:
                self._tell(self._on_report, *report)
            if newest and newest[0] != seen:
                seen = newest[0]
                self._tell(self._on_step, *newest)
            if last:
                return

    def _tell(self, callback: StepCallback | None, step: int, metrics: Mapping[str, float]) -> None:
        try:
            if callback:
                callback(step, metrics)
        except Exception:
            _log.log(
                logging.DEBUG if self._failed else logging.ERROR,
                "a callback failed at step %d; later failures are not logged", step, exc_info=True,
            )  # fmt: skip
            self._failed = True
