"""What a training loop measured, kept with the run: ``run.report({"validation/loss": …})``.

A metric's group is what stands before the last slash of its name; without a slash it is
``training``. Of what `Run.step` returned the loss alone is kept: the ledger has the counts.

Invariants:

* A number is kept whatever its type: a scalar of NumPy, torch or JAX is one. What is left out is
  named once in the worker's log: what is no finite number, or has too long a name.
* Each reported step of the first `DENSE` lines is kept. Then steps are thinned as they are written.
  Of every few the lowest and the highest value of each metric stay; of more, the longer the run. So
  a million steps of one metric make some twenty thousand lines.
* Lines wait until `EVERY_S` has passed, or until they are flushed: each write is on the disk before
  training goes on.
* A line that cannot be written is lost; the run goes on.
"""

from __future__ import annotations

import logging
import math
import numbers
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from govray.errors import GovrayError
from govray.storage.place import Place
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.figures import Figure

EVERY_S = 1.0
DENSE = 2000
"""Lines of a group with a step each; after as many again, steps are taken together by twos more."""
MAX_METRICS = 256
"""In one group. The first in the order of their names are kept."""

_TRAINING = "training"
_log = logging.getLogger(__name__)


def number(value: object) -> float | None:
    """A metric's value: of Python, or a scalar of NumPy, torch or JAX; None if it is no number."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number beyond 1.8e308
        return None


def grouped(metrics: Mapping[str, object], known: Collection[str]) -> dict[str, dict[str, float]]:
    """Group → name → value, of the metrics that are not ``known`` and are finite numbers."""
    found: dict[str, dict[str, float]] = {}
    for name in sorted(metrics):
        value = None if name in known else number(metrics[name])
        if value is None or not math.isfinite(value):
            continue
        group, _, last = name.rpartition("/")
        values = found.setdefault(group or _TRAINING, {})
        if last and len(last) <= events.MAX_NAME and len(values) < MAX_METRICS:
            values[last] = value
    return {
        group: values for group, values in found.items() if values and len(group) <= events.MAX_NAME
    }


class _Group:
    """The steps of one group that wait, thinned the more there have been."""

    def __init__(self) -> None:
        self._lines = 0
        self._bucket: list[tuple[int, dict[str, float]]] = []

    def take(self, step: int, values: dict[str, float]) -> Iterator[tuple[int, dict[str, float]]]:
        self._bucket.append((step, values))
        doublings = self._lines // DENSE
        if len(self._bucket) >= (2 << doublings if doublings else 1):
            yield from self.close()

    def close(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Step → what is kept of it: of each metric the lowest and the highest of the bucket."""
        kept: dict[int, dict[str, float]] = {}
        for name in {name for _, values in self._bucket for name in values}:
            column = [(values[name], step) for step, values in self._bucket if name in values]
            for value, step in {min(column), max(column)}:
                kept.setdefault(step, {})[name] = value
        self._bucket.clear()
        self._lines += len(kept)
        yield from sorted(kept.items())


class MetricLog:
    """Writes what one attempt reports to the run's event log; for rank 0."""

    def __init__(self, folder: Place, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._groups: dict[str, _Group] = {}
        self._waiting: list[events.AnyEvent] = []
        self._written = -math.inf
        self._said = False

    def note(self, step: int, metrics: Mapping[str, object], known: Collection[str]) -> None:
        """Keep the groups of ``metrics``, and write what has waited long enough."""
        found = grouped(metrics, known)
        self._say(metrics, known, found)
        for group, values in found.items():
            series = self._groups.setdefault(group, _Group())
            self._wait(group, series.take(step, values))
        if time.monotonic() - self._written >= EVERY_S:
            self._write()

    def flush(self) -> None:
        for group, series in self._groups.items():
            self._wait(group, series.close())
        self._write()

    def _wait(self, group: str, lines: Iterator[tuple[int, dict[str, float]]]) -> None:
        self._waiting += [
            events.Reported(at=now(), attempt=self._attempt, step=step, group=group, values=values)
            for step, values in lines
        ]

    def _write(self) -> None:
        if not self._waiting:
            return
        self._written = time.monotonic()
        with suppress(OSError, GovrayError):
            events.append(self._folder, *self._waiting)
        self._waiting.clear()

    def _say(
        self,
        metrics: Mapping[str, object],
        known: Collection[str],
        found: Mapping[str, Mapping[str, float]],
    ) -> None:
        if self._said:
            return
        kept = {
            name if group == _TRAINING else f"{group}/{name}"
            for group, values in found.items()
            for name in values
        }
        lost = sorted(
            name
            for name, value in metrics.items()
            if name not in known
            and not isinstance(value, Figure)
            and name.removeprefix(f"{_TRAINING}/") not in kept
            and name.removeprefix("/") not in kept
        )
        if lost:
            self._said = True
            _log.warning(
                "reported, but not kept with the run: %s. A metric is a finite number with a name "
                "of at most %d characters, and a group has %d at most; this is said once",
                ", ".join(lost[:5]), events.MAX_NAME, MAX_METRICS,
            )  # fmt: skip
