"""A run and its steps as spans, below what the job's ``TRACEPARENT`` names.

The driver makes them from what it is told of steps. So workers compute what they compute without
traces, and a step's span ends when the driver hears of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from govray import traces
from govray.train.watching.run_callback import RunCallback, RunStarted

SPANS = 256
"""Spans of one width. After so many, one covers twice as many steps: a run of a million steps has
some 3,000."""


class TraceCallback(RunCallback):
    """Told of a run, it sends one trace of it."""

    def __init__(self) -> None:
        self._run = traces.Span()
        self._began = self._first = self._last = self._count = 0
        self._width = 1

    def start(self, run: RunStarted) -> int | None:
        """Begin the span of the run."""
        self._run = traces.begin("run", parent=os.environ.get(traces.VARIABLE))
        self._run.set(govray_run=run.run_id, govray_policy=run.policy, govray_resumed=run.step)
        self._first, self._last, self._began = run.step, run.step - 1, time.time_ns()
        return None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """End a span of steps, if it is full."""
        self._last = step
        if step - self._first + 1 >= self._width:
            self._send()

    def end(self, outcome: str) -> None:
        """End the span of the run, and send all."""
        if self._last >= self._first:
            self._send()
        self._run.set(govray_outcome=outcome, govray_steps=self._last + 1)
        if outcome == "failed":
            self._run.fail(outcome)
        self._run.end()
        traces.flush()

    def _send(self) -> None:
        at = time.time_ns()
        span = traces.begin("steps", parent=self._run.traceparent, at=self._began)
        span.set(govray_step_first=self._first, govray_step_last=self._last)
        span.end(at)
        self._first, self._began = self._last + 1, at
        self._count += 1
        if self._count == SPANS:
            self._count, self._width = 0, self._width * 2
