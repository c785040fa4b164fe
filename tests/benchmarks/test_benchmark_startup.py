"""The start-up trial's benchmark finds the trial, in the first step and in no later one."""

from __future__ import annotations

import pytest

from benchmarks.startup_trial import RUN, cost
from benchmarks.step_options import QUICK


def test_the_trial_is_in_the_first_step_only() -> None:
    found = cost(QUICK, steps=3)
    assert found["trial"] > 0
    assert found["later"] < found["trial"] / 10
    assert found["share"] == pytest.approx(found["trial"] / (RUN * found["step"]), rel=0.2)
