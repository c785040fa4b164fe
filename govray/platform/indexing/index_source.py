"""Searches for the index: what `govray.platform.indexing.indexer` cannot know of their trials.

Everything comes from a search's own record: no cluster is needed, and nothing is written. Trials
whose hyperparameters could not be run have no run, and no row.
"""

from __future__ import annotations

import math
from pathlib import Path

from govray.governance.formats.document import format_time
from govray.platform.indexing.indexed_search import IndexedSearch, SearchTrial
from govray.platform.indexing.indexer import LEFT_OUT, why_left_out
from govray.platform.store.states import RunState
from govray.train.run_folder.event_rows import Decided, MetricValue
from govray.tune import search_record as records
from govray.tune.objective import TrialReport
from govray.tune.search import stand
from govray.tune.search_record import SearchRecord, TrialRecord
from govray.tune.trial_reports import read_reports

_STATES = {
    "finished": RunState.COMPLETED,
    "stopped": RunState.STOPPED,
    "failed": RunState.ERROR,
    "invalid": RunState.ERROR,
}


def searches(storage: Path) -> tuple[list[IndexedSearch], dict[str, str]]:
    """The searches below a storage path, and folder → why one cannot be read."""
    found, left_out = [], {}
    for path in sorted(storage.resolve().glob(f"*/{records.SEARCH}")):
        try:
            found.append(_search(records.read(path.parent)))
        except LEFT_OUT as error:
            left_out[str(path.parent)] = why_left_out(error)
    return found, left_out


def _search(record: SearchRecord) -> IndexedSearch:
    standings = stand(record)
    return IndexedSearch(
        folder=record.folder,
        name=record.file.experiment.name,
        started=format_time(record.started),
        config=records.file_value(record.file),
        concluded=record.concluded,
        trials={
            trial.run: _trial(record, trial, standings[name].last)
            for name, trial in record.trials.items()
        },
    )


def _trial(record: SearchRecord, trial: TrialRecord, last: TrialReport | None) -> SearchTrial:
    objective = last.objective if last and math.isfinite(last.objective) else None
    ended = [Decided(kind=trial.how, reason=trial.reason or "")] if trial.how else []
    return SearchTrial(
        values=trial.values,
        state=_STATES[trial.how] if trial.how else None,
        why=trial.reason if trial.how != "finished" else None,
        objective=objective,
        numbers=_numbers(record.folder / trial.run, record.file.search.metric),
        decisions=ended,
    )


def _numbers(folder: Path, metric: str) -> list[MetricValue]:
    """What a trial reported at its commits. The numbers are those of the last finished step."""
    return [
        MetricValue(group="search", name=name, step=each.step - 1, attempt=0, value=value)
        for each in read_reports(folder)
        for name, value in ((metric, each.value), ("memorization", each.memorization))
        if value is not None and math.isfinite(value)
    ]
