"""A search that goes on draws what it had drawn, and its searcher hears of what ran in truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from govray.train.run_folder.clock import instant
from govray.tune.point_searcher import Points
from govray.tune.repeating_searcher import RepeatingSearcher
from govray.tune.search_record import SearchRecord, read
from govray.tune.trial import NAME
from tests.support.search_files import search_file


class Learns(Searcher):
    """Draws another point each time that it is made, as one that learns may."""

    def __init__(self, first: float) -> None:
        super().__init__(metric="objective", mode="min")
        self._next = first
        self.heard: list[Any] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self._next /= 2
        return {"optimizer.lr": self._next}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.heard.append((trial_id, result, error))

    def add_evaluated_point(self, parameters: dict[str, Any], value: float, **more: Any) -> None:
        self.heard.append((parameters, value))

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


def begin(folder: Path) -> SearchRecord:
    record = SearchRecord(folder=folder, file=search_file(), started=instant())
    record.write()
    return record


def test_points_are_drawn_again_and_then_the_next(tmp_path: Path) -> None:
    def points() -> Points:
        return Points(lambda number: {"optimizer.lr": 2.0**-number}, trials=4, concurrent=9)

    first = RepeatingSearcher(points(), begin(tmp_path))
    drawn = [first.suggest(str(number)) for number in range(2)]
    again = RepeatingSearcher(points(), read(tmp_path))
    assert [again.suggest(f"new-{number}") for number in range(2)] == drawn
    third = again.suggest("new-2")
    assert (third["optimizer.lr"], third[NAME][:10]) == (0.25, "trial-0002")
    assert [each.values for each in read(tmp_path).trials.values()] == [
        {"optimizer.lr": 2.0**-number} for number in range(3)
    ]
    again.closed = True
    assert again.suggest("new-3") == Searcher.FINISHED


def test_a_searcher_that_learns_hears_which_point_ran(tmp_path: Path) -> None:
    first = RepeatingSearcher(Learns(0.5), begin(tmp_path))
    assert first.suggest("a")["optimizer.lr"] == 0.25
    inner = Learns(0.125)
    again = RepeatingSearcher(inner, read(tmp_path))
    assert again.suggest("b")["optimizer.lr"] == 0.25  # recorded; the searcher says 0.0625
    assert again.suggest("c")["optimizer.lr"] == 0.03125  # its own
    again.on_trial_complete("b", {"objective": 3.0})
    again.on_trial_complete("c", {"objective": 2.0})
    assert inner.heard == [
        ("b", None, True),
        ({"optimizer.lr": 0.25}, 3.0),
        ("c", {"objective": 2.0}, False),
    ]
