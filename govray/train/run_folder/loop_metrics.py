"""What a training loop measured itself, kept with the run: ``run.report({"validation/loss": …})``.

A metric's group is what stands before the last slash of its name; without a slash it is
``training``. What `Run.step` returned is left out: the event log has the loss, and the ledger the
counts.

Invariants:

* Only finite numbers, for canonical JSON has no others. Other metrics are left out.
* A group is written at most once in `EVERY_S`: each event is on the disk before training goes on.
* A line that cannot be written is lost; the run goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from govray.errors import GovrayError
from govray.files.place import Place
from govray.train.run_folder import events
from govray.train.run_folder.clock import now

EVERY_S = 1.0
MAX_METRICS = 256
"""In one group. The first in the order of their names are kept."""

_TRAINING = "training"
LARGEST = 2.0**53
"""Canonical JSON has no numbers from here to 1e21."""


def grouped(metrics: Mapping[str, object], known: Collection[str]) -> dict[str, dict[str, float]]:
    """Group → name → value, of the metrics that are not ``known`` and are finite numbers."""
    found: dict[str, dict[str, float]] = {}
    for name in sorted(metrics):
        value = metrics[name]
        if name in known or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not abs(value) < LARGEST:  # nor is NaN
            continue
        group, _, last = name.rpartition("/")
        values = found.setdefault(group or _TRAINING, {})
        if last and len(last) <= events.MAX_NAME and len(values) < MAX_METRICS:
            values[last] = float(value)
    return {
        group: values for group, values in found.items() if values and len(group) <= events.MAX_NAME
    }


class MetricLog:
    """Writes what one attempt reports to the run's event log; for rank 0."""

    def __init__(self, folder: Place, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._written: dict[str, float] = {}

    def note(self, step: int, metrics: Mapping[str, object], known: Collection[str]) -> None:
        """Write the groups of ``metrics`` that are due."""
        for group, values in grouped(metrics, known).items():
            moment = time.monotonic()
            if moment - self._written.get(group, -math.inf) < EVERY_S:
                continue
            self._written[group] = moment
            with suppress(OSError, GovrayError):
                events.append(
                    self._folder,
                    events.Reported(
                        at=now(), attempt=self._attempt, step=step, group=group, values=values
                    ),
                )
