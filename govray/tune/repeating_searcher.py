"""Draws that a search repeats: first the recorded ones, then its searcher's.

A resumed search gives the same trials again, from its record. The recipe's searcher draws along, to
reach its earlier state. If it draws another point, it is told which one was really tried.

Invariant: each draw is recorded before its trial starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.tune.search import Searcher

from govray.tune.recipe import METRIC
from govray.tune.search_record import SearchRecord
from govray.tune.trial import NAME


class RepeatingSearcher(Searcher):
    """Draws the search's recorded points, then what the recipe's searcher draws next."""

    def __init__(self, inner: Searcher, record: SearchRecord) -> None:
        super().__init__(metric=inner.metric, mode=inner.mode)
        self._inner = inner
        self._record = record
        self._past = list(record.trials.values())
        self._foreign: dict[str, Mapping[str, Any]] = {}
        self.closed = False

    def set_search_properties(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._inner.set_search_properties(*args, **kwargs))

    def suggest(self, trial_id: str) -> Any:
        if self.closed:
            return Searcher.FINISHED
        drawn: Any = self._inner.suggest(trial_id)
        if self._past and drawn is not None:
            past = self._past.pop(0)
            if drawn == Searcher.FINISHED or drawn != past.values:
                self._foreign[trial_id] = past.values
            return {**past.values, NAME: past.name}
        if drawn is None or drawn == Searcher.FINISHED:
            return drawn
        return {**drawn, NAME: self._record.drawn(drawn).name}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._inner.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called by Ray Tune. A searcher that learns is told which point was really tried."""
        values = self._foreign.pop(trial_id, None)
        learns = type(self._inner).add_evaluated_point is not Searcher.add_evaluated_point
        if values is None or not learns:
            self._inner.on_trial_complete(trial_id, result, error)
            return
        self._inner.on_trial_complete(trial_id, None, True)
        last = result or {}
        if error or not math.isfinite(last.get(METRIC, math.inf)):
            return
        if learn := getattr(self._inner, "learn", None):  # ours; it also wants the violation
            learn(values, last)
        else:
            self._inner.add_evaluated_point(dict(values), last[METRIC])

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the record is kept elsewhere."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a search resumes from its record."""
