"""When a value is the best, and when a run has waited long enough."""

from __future__ import annotations

import math
from typing import Any

import pytest

from govray.train.experiment.sections import Validation
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
