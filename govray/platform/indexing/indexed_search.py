"""A search as the index has it: an experiment of many trials, with what it knows of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from govray.platform.store.states import RunState
from govray.train.run_folder.event_rows import Decided, MetricValue


@dataclass(frozen=True, kw_only=True)
class SearchTrial:
    """What a search knows of one of its runs. ``state``: how the search ended it, if it did; else
    the folder decides."""

    values: Mapping[str, Any]
    state: RunState | None = None
    why: str | None = None
    objective: float | None = None
    numbers: Sequence[MetricValue] = ()
    decisions: Sequence[Decided] = ()


@dataclass(frozen=True, kw_only=True)
class IndexedSearch:
    """One search: an experiment of many trials. ``trials`` is by the name of the run's folder."""

    folder: Path
    name: str
    started: str
    config: Mapping[str, Any]
    concluded: bool
    trials: Mapping[str, SearchTrial]
