"""When a value is the best, and when a run has waited long enough."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from govray.train.experiment.sections import Validation
from govray.train.inputs.experiment_config import Experiment
from govray.train.validation.best_so_far import BestSoFar


def section(**changes: Any) -> Validation:
    fields = {"every_steps": 5, "early_stopping": {"patience": 2, "min_delta": 0.1}}
    return Validation.model_validate(fields | changes)


def told(values: list[float], judged: Validation) -> BestSoFar:
    found = BestSoFar()
    for number, value in enumerate(values, 1):
        found = BestSoFar.of_state({"validation": found.after(5 * number, value, judged).to_json()})
    return found


@pytest.mark.parametrize(
    ("values", "best", "step", "ended"),
    [
        ([3.0, 2.0, 2.95], 2.0, 10, False),
        ([3.0, 2.0, 1.95, 1.94], 2.0, 10, True),  # better, but not by enough
        ([3.0, 2.0, math.nan, 1.5], 1.5, 20, False),
        ([math.inf, math.nan], None, 0, True),
    ],
)
def test_lower_is_better(values: list[float], best: float, step: int, ended: bool) -> None:
    found = told(values, section())
    assert (found.best, found.best_step, found.ended) == (best, step, ended)


def test_higher_is_better() -> None:
    judged = section(corpora="held", metric="accuracy")
    found = told([0.5, 0.7, 0.75, 0.6], judged)
    assert (judged.metric_name, judged.better) == ("validation/accuracy", "max")
    assert (found.best, found.best_step, found.ended) == (0.7, 10, True)
    assert (found.measured(20), found.measured(15)) == (0.6, None)


def test_without_early_stopping_a_run_never_ends() -> None:
    assert not told([1.0, 2.0, 3.0, 4.0], section(early_stopping=None)).ended


def test_an_unknown_metric_needs_a_goal() -> None:
    with pytest.raises(ValidationError, match="goal: say min or max"):
        section(metric="bleu")
    assert section(metric="bleu", goal="max").metric_name == "bleu"
    assert section(corpora="held", metric="test/bleu", goal="max").metric_name == "test/bleu"


def test_commits_come_when_there_is_a_value_for_them() -> None:
    value: dict[str, Any] = {
        "name": "a",
        "hyperparameters": {"context": 8},
        "data": {"corpora": "c", "rows_per_step": {}},
        "governance": {"policy": "p", "trust_root": "t"},
        "max_steps": 10,
        "checkpoint": {"every_steps": 10},
    }
    assert Experiment.model_validate(value | {"validation": {"every_steps": 5}}).validation
    with pytest.raises(ValidationError, match=r"validation\.every_steps: of 4"):
        Experiment.model_validate(value | {"validation": {"every_steps": 4}})
