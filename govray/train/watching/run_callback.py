"""`RunCallback`: what a driver tells others of a run, and `Told`, which calls them.

Invariants:

* A callback never holds a run up and never stops it. Each has a thread of its own. One that raises
  loses that call, with a warning the first time; one whose `start` raises is told nothing more.
* Steps come in order, each once. One that runs again after a restart or a rollback is not told
  again, so the first values stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import Any

from govray.errors import Stopped
from govray.storage.place import Place

_log = logging.getLogger(__name__)

WAITING = 100_000
"""Steps that may wait for a slow tracker; it loses those beyond."""
LAST_S = 60.0
"""Seconds that a driver waits for a tracker at the end."""


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """What is known of a run when its driver begins.

    Attributes:
        experiment: Name of its experiment file; the run's without one.
        step: Where it resumes; 0 if it is new.
        settings: Dotted name → value: the experiment, or the loop's own configuration.
        policy: Digest of its depth policy.
    """

    run_id: str
    folder: Place
    experiment: str
    step: int
    settings: Mapping[str, str | int | float | bool | None]
    policy: str


class RunCallback:
    """Told of a run on its driver; override what you need. Give it to
    ``GovernedTrainer(callbacks=…)``."""

    def start(self, run: RunStarted) -> int | None:
        """The driver begins; returns the last step that was told before, if the run resumes."""
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was done and reported. One without loss targets has no ``loss``."""

    def attested(self, files: Mapping[str, bytes]) -> None:
        """The model is signed; ``files`` has the attestation and the policy, by name."""

    def end(self, outcome: str) -> None:
        """The driver ends: ``finished``, ``stopped`` or ``failed``. Called last, always."""


class Told:
    """Context manager on the driver that tells callbacks of one run."""

    def __init__(self, callbacks: Sequence[RunCallback]) -> None:
        self._lines = [_Line(each) for each in callbacks]

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __enter__(self) -> Told:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        stopped = kind is not None and issubclass(kind, Stopped)
        outcome = "finished" if kind is None else "stopped" if stopped else "failed"
        for line in self._lines:
            line.end(outcome)
        for line in self._lines:
            line.join()

    def start(self, run: RunStarted) -> None:
        """The run, before its first step here."""
        for line in self._lines:
            line.start(run)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step that was reported."""
        for line in self._lines:
            line.step(step, dict(metrics))

    def attested(self, files: Mapping[str, bytes]) -> None:
        """What was signed."""
        for line in self._lines:
            line.call(lambda each: each.attested(files))


class _Line:
    """One callback's thread, and what waits for it."""

    def __init__(self, callback: RunCallback) -> None:
        self._callback = callback
        self._name = type(callback).__name__
        self._calls: Queue[Callable[[RunCallback], Any] | None] = Queue()
        self._thread = threading.Thread(target=self._run, name=f"govray-{self._name}", daemon=True)
        self._last: int | None = None
        self._begun = False
        self._started = False

    def start(self, run: RunStarted) -> None:
        self._begun = True
        self._thread.start()

        def begin(callback: RunCallback) -> None:
            self._last = callback.start(run)
            self._started = True

        self.call(begin)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        def new(callback: RunCallback) -> None:
            if self._last is None or step > self._last:
                self._last = step
                callback.step(step, metrics)

        if self._calls.qsize() < WAITING:
            self.call(new)

    def call(self, call: Callable[[RunCallback], Any]) -> None:
        self._calls.put(call)

    def end(self, outcome: str) -> None:
        if self._begun:
            self._calls.put(lambda each: each.end(outcome))
            self._calls.put(None)

    def join(self) -> None:
        if self._begun:
            self._thread.join(LAST_S)
            if self._thread.is_alive():
                _log.warning("%s has not ended after %.0f s and is left", self._name, LAST_S)

    def _run(self) -> None:
        failures = 0
        while (call := self._calls.get()) is not None:
            if failures and not self._started:
                continue
            try:
                call(self._callback)
            except Exception as error:
                failures += 1
                if failures == 1:
                    said = str(error).strip().splitlines() or [""]
                    _log.warning(
                        "%s failed%s; the run goes on: %s: %s",
                        self._name,
                        " and loses that call"
                        if self._started
                        else " to start, and is told no more",
                        type(error).__name__,
                        said[0],
                    )
        if failures > 1:
            _log.warning("%s failed %d times in all", self._name, failures)
