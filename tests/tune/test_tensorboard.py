"""TensorBoard's files of a search: the numbers that it can draw, and no warning about others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ray.tune.logger import TBXLoggerCallback

from govray.tune.search import _Board

WARNING = "NaN or Inf found in input tensor."


class FakeTrial:
    """What the callback uses of a trial."""

    def __init__(self, local_path: str) -> None:
        self.local_path = local_path
        self.evaluated_params: dict[str, Any] = {}

    def init_local_path(self) -> None: ...


def test_numbers_that_are_not_finite_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = {"step": 3, "training_iteration": 1, "value": 0.5, "objective": math.inf}
    for callback, warned in ((_Board(), 0), (TBXLoggerCallback(), 1)):
        caplog.clear()
        trial = FakeTrial(str(tmp_path))
        callback.log_trial_start(trial)
        callback.log_trial_result(1, trial, dict(result))
        # The control: Ray's own callback lets infinity pass.
        assert [each.message for each in caplog.records].count(WARNING) == warned
