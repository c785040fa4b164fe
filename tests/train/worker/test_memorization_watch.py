"""M of a run whose profiles measure corpora in turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from govray.train.worker.memorization_watch import newest_deviation


def profile(step: int, **deviations: float) -> Any:
    measures = [
        SimpleNamespace(corpus=corpus, deviation=each)
        for corpus, highest in deviations.items()
        for each in (highest, highest - 1)
    ]
    return SimpleNamespace(step=step, corpora={*deviations}, measures=measures)


def test_a_corpus_that_is_not_in_turn_counts_by_its_newest_profile() -> None:
    history = [profile(1, a=0.5), profile(3, b=2.4), profile(5, a=0.4), profile(7, b=0.1)]
    assert [newest_deviation(history, step, 2) for step in (1, 3, 5, 6, 7)] == [
        0.5,
        2.4,
        2.4,
        2.4,
        0.4,
    ]
