"""A trace of some steps by torch's profiler, beside the run: ``profile/rank0-steps10-20.json.gz``.

What opens Chrome traces opens it: Perfetto, or ``chrome://tracing``. Rank 0 traces from before it
asks for the rows of the first step until after the last step's report.

Invariants:

* Tracing draws nothing at random and computes nothing: the weights are those of a run without it.
* A trace that cannot be made or written is a warning; the run goes on.
* An attempt that begins or ends within the steps traces those that it does, and names them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from govray.storage.atomic_file import make_folder, write_whole
from govray.storage.place import Place

FOLDER = "profile"

_log = logging.getLogger(__name__)


class StepProfiler:
    """Traces the steps of a range as a run reaches them. ``steps``: the range; empty for none."""

    def __init__(self, steps: range, folder: Place) -> None:
        self._steps = steps
        self._folder = folder / FOLDER
        self._trace: profile | None = None
        self._first = self._done = 0
        self._step: AbstractContextManager[object] | None = None

    def over(self, steps: Iterable[int]) -> Iterator[int]:
        """``steps``, of which each is over when the next is asked for."""
        try:
            for step in steps:
                self._before(step)
                yield step
        finally:
            self._end()

    def _before(self, step: int) -> None:
        self._leave()
        if step not in self._steps:
            self._end()
            return
        if self._trace is None:
            self._first = step
            self._start()
        if self._trace is not None:
            self._step = record_function(f"step {step}")
            self._step.__enter__()
        self._done = step + 1

    def _end(self) -> None:
        """No further step is traced; write what was."""
        self._leave()
        trace, self._trace = self._trace, None
        if trace is None:
            return
        name = f"rank0-steps{self._first}-{self._done}.json.gz"
        try:
            trace.stop()
            with TemporaryDirectory() as scratch:
                file = Path(scratch) / name  # by its ending torch compresses it
                trace.export_chrome_trace(str(file))
                make_folder(self._folder)
                write_whole(self._folder / name, file.read_bytes())
        except Exception as error:
            self._warn(error)

    def _start(self) -> None:
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        trace = profile(activities=kinds)
        try:
            trace.start()
        except Exception as error:  # another profiler of the user's own may be at work
            self._steps = range(0)
            self._warn(error)
        else:
            self._trace = trace

    def _leave(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _warn(self, error: Exception) -> None:
        _log.warning("no trace in %s: %s: %s", self._folder, type(error).__name__, error)
