"""What a search stores about itself: enough to resume after its driver has died.

``search.json`` says what is searched and under which inputs. ``trials.jsonl`` has one line for each
decision: a trial was drawn, took over another's state, or ended. Ray Tune's own pickles beside it
are never opened: a search resumes from this record alone.

Invariants:

* Only the process that holds the search's folder appends. A line is on the disk before the
  decision takes effect, so a trial never runs with values that are not recorded.
* A last line that a crash cut off is ignored by `read`, and overwritten.

What trials report is kept in each one's own folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from govray.errors import Malformed, UsageError
from govray.governance.formats import canonical_json
from govray.governance.formats.document import format_time, parse_time
from govray.governance.submission.submission import Submission
from govray.storage.atomic_file import sync_folder, write_whole
from govray.storage.regular_file import open_regular, read_regular
from govray.train.run_folder.run_names import trial_name
from govray.tune.search_config import SearchFile, parse_search

SEARCH = "search.json"
TRIALS = "trials.jsonl"
MAX_BYTES = 256 << 20

_SCHEMA = "govray.dev/search/v1"

How = Literal["finished", "stopped", "invalid", "failed"]
"""How a trial ended. ``invalid``: its hyperparameters can't be run, and it took no step."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """What was decided about one trial.

    Attributes:
        name: Its name, and that of its folder.
        values: Dotted name to value, in place of the experiment's.
        run: Folder of its run: its own name, or that of the run that took over another trial's
            state.
        how: How it ended; None while it has not.
    """

    name: str
    values: Mapping[str, Any]
    run: str
    how: How | None = None
    reason: str | None = None


@dataclass(kw_only=True)
class SearchRecord:
    """One search: what it is, and what it has decided so far. ``started``: when it began, the
    reference time of all its trials. ``trials``: by name, in the order they were drawn."""

    folder: Path
    file: SearchFile
    started: datetime
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    concluded: bool = False
    submission: Submission | None = None
    _end: int = 0

    def write(self) -> None:
        """Write the folder's ``search.json``, once, when the search begins."""
        value = {
            "schema": _SCHEMA,
            "started": format_time(self.started),
            "file": file_value(self.file),
        }
        if self.submission:
            value["submission"] = self.submission.to_json()
        write_whole(self.folder / SEARCH, canonical_json.encode(value))

    def drawn(self, values: Mapping[str, Any]) -> TrialRecord:
        """Record a new trial before it starts, and return it."""
        name = trial_name(self.folder.name, len(self.trials))
        self._append({"kind": "drawn", "trial": name, "values": dict(values)})
        return self.trials[name]

    def cloned(self, trial: str, run: str, donor: str, values: Mapping[str, Any]) -> None:
        """Record that a trial takes over the state of ``donor``, another trial's run."""
        line = {"kind": "cloned", "trial": trial, "run": run, "donor": donor}
        self._append(line | {"values": dict(values)})

    def ended(self, trial: str, how: How, reason: str) -> None:
        if self.trials[trial].how is None:
            self._append({"kind": "ended", "trial": trial, "how": how, "reason": reason[:4096]})

    def conclude(self) -> None:
        """Record that nothing is left to run."""
        self._append({"kind": "concluded"})

    def _append(self, line: dict[str, Any]) -> None:
        data = canonical_json.encode(line) + b"\n"
        descriptor = os.open(self.folder / TRIALS, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, self._end)
            os.pwrite(descriptor, data, self._end)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not self._end:
            sync_folder(self.folder)  # the file may be new
        self._end += len(data)
        self._apply(line)

    def _apply(self, line: Any) -> None:
        match line:
            case {"kind": "drawn", "trial": str(name), "values": dict(values)}:
                self.trials[name] = TrialRecord(name=name, values=values, run=name)
            case {
                "kind": "cloned",
                "trial": str(name),
                "run": str(run),
                "donor": str(),
                "values": dict(values),
            } if name in self.trials:
                self.trials[name] = replace(self.trials[name], run=run, values=values)
            case {"kind": "ended", "trial": str(name), "how": how, "reason": str(reason)} if (
                name in self.trials and how in get_args(How)
            ):
                self.trials[name] = replace(self.trials[name], how=how, reason=reason)
            case {"kind": "concluded"}:
                self.concluded = True
            case _:
                raise Malformed("a line is not one of a search's", where=str(self.folder / TRIALS))


def read(folder: Path) -> SearchRecord:
    path = folder / SEARCH
    if not path.is_file():
        raise UsageError(
            "this is not the folder of a search",
            where=str(folder),
            do="Searches lie under the experiment's storage_path, one folder each",
        )
    value: Any = canonical_json.parse_canonical(read_regular(path), where=str(path))
    try:
        schema, started, file = value["schema"], value["started"], value["file"]
    except (KeyError, TypeError):
        raise Malformed("not the record of a search", where=str(path)) from None
    if schema != _SCHEMA:
        raise Malformed(f"unknown schema {schema!r}", where=str(path))
    record = SearchRecord(
        folder=folder,
        file=parse_search(restored(file), where=str(path)),
        started=parse_time(started),
        submission=Submission.from_json(value["submission"], where=str(path))
        if "submission" in value
        else None,
    )
    try:
        with open_regular(folder / TRIALS) as lines:
            data = lines.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return record
    if len(data) > MAX_BYTES:
        raise Malformed(f"larger than {MAX_BYTES} bytes", where=str(folder / TRIALS))
    *whole, _ = data.split(b"\n")
    for line in whole:
        record._apply(canonical_json.parse_canonical(line, where=str(folder / TRIALS)))
        record._end += len(line) + 1
    return record


def file_value(file: SearchFile) -> dict[str, Any]:
    """A search file as canonical JSON can hold it; infinities are written as text."""
    search = file.search.model_dump(mode="python")
    value: Any = _finite(file.experiment.model_dump(mode="json") | {"search": search})
    return dict(value)


def restored(value: Any) -> Any:
    """The inverse of `file_value`, except that tuples have become lists."""
    if isinstance(value, dict):
        return {key: restored(each) for key, each in value.items()}
    if isinstance(value, list):
        return [restored(each) for each in value]
    return float("inf") if value == _INFINITY else value


_INFINITY = ".inf"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _INFINITY if value == float("inf") else value
