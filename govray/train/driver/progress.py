"""A run's progress, reported to the driver; its output, kept in the run's folder.

Rank 0 sends each step's metrics to a small actor without waiting, and the driver polls it. A lost
message only skips a display update: the ledger has what a run did.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from govray.storage.place import Place, place
from govray.train.experiment.sections import LogPolicy
from govray.train.inputs.order import Order
from govray.train.run_folder import events, stop_request
from govray.train.run_folder.clock import now
from govray.train.run_folder.shipped_log import ShippedLog, driver_log, outputs, worker_log

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


LEAST_S = 5.0
"""Seconds of steps that an estimate rests on, at least."""


class TimeLeft:
    """The seconds to a run's last step, at the speed so far.

    The first step that is seen only starts the clock: starting workers and first passes say nothing
    about the rest.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def after(self, done: int, total: int) -> float | None:
        """Seconds that the steps from ``done`` to ``total`` take; None while nobody can say."""
        at = self._clock()
        if self._first is None or done < self._first[0]:  # it was rolled back
            self._first = done, at
            return None
        begun, since = self._first
        if done == begun or at - since < LEAST_S:
            return None
        return (total - done) * (at - since) / (done - begun)


def hours(seconds: float) -> str:
    """For people: ``50 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@contextmanager
def of_worker(order: Order, rank: int, attempt: int) -> Iterator[None]:
    """Ship what this worker prints, and the error that ends it."""
    folder, name = place(order.folder), worker_log(rank, attempt)
    with ShippedLog(
        folder, name, outputs(), on_line=watch(folder, name, order.experiment.log_policies)
    ) as log:
        try:
            yield
        except Exception:
            log.write(traceback.format_exc())
            raise


@contextmanager
def of_driver(order: Order) -> Iterator[None]:
    """Ship what this driver prints from now on, if that goes to a file."""
    name = driver_log(order.driver)
    with ShippedLog(place(order.folder), name, outputs(from_now=True)):
        yield


def watch(folder: Place, name: str, policies: Sequence[LogPolicy]) -> Callable[[str], None] | None:
    """What looks at the lines of a log: each policy follows once from one log."""
    left = list(policies)
    if not left:
        return None

    def look(line: str) -> None:
        for each in [policy for policy in left if policy.fits(line)]:
            left.remove(each)
            _follow(folder, name, each, line)

    return look


def _follow(folder: Place, name: str, policy: LogPolicy, line: str) -> None:
    event = events.LogMatched(
        at=now(),
        log=name,
        pattern=policy.pattern,
        action=policy.action,
        line=line[:500],
        node=ray.get_runtime_context().get_node_id() if policy.action == "exclude_node" else None,
    )
    if policy.action == "stop":
        # First: should the event not be written, the run stops all the same.
        stop_request.request(folder, f"log policy {policy.pattern!r}")
    events.append(folder, event)
