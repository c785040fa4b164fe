"""A trial's reports: one line in its run's folder at each commit.

The process that drives the trial writes the line when all ranks have reported, and reads it. So a
report outlives every process. A resumed search reads the reports of its finished trials instead of
running them again.

Invariants:

* A step counts once, with its first line: repeated steps report the same.
* A last line that a crash cut off is ignored, and written again by the repeated step.
* A metric that is not reported with a commit is the last one reported before.
* A run goes on from a commit that it reported. A report that a crash took along is made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train

from govray.errors import Malformed, UsageError, suggestion
from govray.governance.formats import canonical_json
from govray.storage.regular_file import open_regular
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import SUPERSEDED
from govray.train.state.snapshot import committed_folders
from govray.train.worker.run import COMMIT_LOSS
from govray.tune.objective import TrialReport, report
from govray.tune.search_config import Search

FILE = "reports.jsonl"
MEMORIZATION = "memorization"
"""In a worker's report: the monitor's statistic, if measured."""

VALUE = "loss"
"""Key of the search's metric in a line, whatever it is: the first version knew losses alone."""

MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One report, not yet judged. ``value``: the search's metric; NaN if it is not a number.
    ``memorization``: M, as last measured by then; None if it never was."""

    step: int
    value: float
    memorization: float | None

    def judged(self, search: Search) -> TrialReport:
        return report(
            step=self.step,
            value=self.value,
            memorization=self.memorization,
            tau=search.tau,
            goal=search.goal,
        )

    @property
    def line(self) -> bytes:
        """As the file has it, without what canonical JSON cannot hold."""
        figures = {VALUE: _number(self.value), MEMORIZATION: _number(self.memorization)}
        kept = {name: value for name, value in figures.items() if value is not None}
        return canonical_json.encode({"step": self.step, **kept}) + b"\n"


class Reporter(ray.train.UserCallback):
    """Runs in Ray Train's controller, and appends a line for each report with a commit.

    Args:
        metric: What the search compares: a name in the metrics that the loop reports. ``loss`` is
            the mean over the steps since the last commit.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self._folder = folder
        self._metric = metric
        self._memorization: float | None = None
        self._value: float | None = None  # as last reported

    def after_report(
        self, run_context: Any, metrics: Sequence[Mapping[str, Any]], checkpoint: Any
    ) -> None:
        """Called by Ray once all ranks have reported; rank 0's metrics count. Raises `UsageError`:
        the loop doesn't report the metric."""
        said = metrics[0]
        name = COMMIT_LOSS if self._metric == "loss" else self._metric
        if self._value is None and (before := read_reports(self._folder)):
            self._memorization = before[-1].memorization  # an earlier attempt measured it
            self._value = before[-1].value
        self._memorization = said.get(MEMORIZATION, self._memorization)
        if name in said:
            self._value = self._number_of(said[name])
        if COMMIT_LOSS not in said:
            return
        if name not in said and self._value is None:
            names = sorted(str(each) for each in said if each != COMMIT_LOSS)
            raise UsageError(
                f"the training loop reports no {self._metric!r}"
                f"{suggestion(self._metric, names)}; it reports {', '.join(names)}",
                where="search.metric",
                do="Name one of these, or pass it to run.report()",
            )
        value = math.nan if self._value is None else self._value
        made = Measurement(step=int(said["step"]) + 1, value=value, memorization=self._memorization)
        with (self._folder / FILE).open("ab") as file:
            if file.tell() and not _ends_a_line(self._folder / FILE):
                file.write(b"\n")
            file.write(made.line)

    def _number_of(self, value: object) -> float:
        if value is None:
            return math.nan
        if isinstance(value, int | float):
            return float(value)
        raise UsageError(
            f"the training loop reports {self._metric!r}, but not as a number",
            where="search.metric",
            do="Search by a number",
        )


def read_reports(folder: Path) -> list[Measurement]:
    """A run's reports, by step."""
    try:
        with open_regular(folder / FILE) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    where = str(folder / FILE)
    if len(data) > MAX_BYTES:
        raise Malformed(f"larger than {MAX_BYTES} bytes", where=where)
    *lines, _ = data.split(b"\n")
    found: dict[int, Measurement] = {}
    for line in lines:
        value: Any
        try:
            value = canonical_json.parse_canonical(line)
        except Malformed:
            continue  # cut off by a crash, with later lines behind it
        try:
            measured = Measurement(
                step=int(value["step"]),
                value=float(value.get(VALUE, math.nan)),
                memorization=value.get(MEMORIZATION),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Malformed("a line is no report", where=where) from None
        found.setdefault(measured.step, measured)
    return [found[step] for step in sorted(found)]


def put_unreported_aside(run: Path) -> None:
    """Put aside the commits of a run behind its last report, before the run goes on. A kill may
    come between a commit and its report. The run then repeats those steps, and reports them."""
    reported = max((each.step for each in read_reports(run)), default=0)
    for step, folder in committed_folders(run):
        if step > reported:
            commit_folder.put_aside(folder, SUPERSEDED)


def reports_until(donor: Path, until: int) -> bytes:
    """What a clone's reports begin with: its donor's, up to their common step."""
    return b"".join(each.line for each in read_reports(donor) if each.step <= until)


def _number(value: Any) -> float | None:
    """The value if canonical JSON can hold it, else None."""
    return float(value) if value is not None and abs(float(value)) < 2**53 else None


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"
