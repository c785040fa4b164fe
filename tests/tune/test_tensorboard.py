"""TensorBoard's files of a search: the numbers that it can draw, and no warning about others."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.logger import TBXLoggerCallback

from govray.tune.search import _Board

WARNING = "NaN or Inf found in input tensor."


def test_numbers_that_are_not_finite_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = {"step": 3, "training_iteration": 1, "value": 0.5, "objective": math.inf}
    for callback, warned in ((_Board(), 0), (TBXLoggerCallback(), 1)):
        caplog.clear()
        trial: Any = SimpleNamespace(
            init_local_path=lambda: None, local_path=str(tmp_path), evaluated_params={}, config={}
        )
        callback.log_trial_start(trial)
        callback.log_trial_result(1, trial, dict(result))
        # The control: Ray's own callback lets infinity pass.
        assert [each.message for each in caplog.records].count(WARNING) == warned
