"""A trace of some steps: where it lies, what it holds, and that it moves no weight."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from govray.errors import UsageError
from govray.train.driver.trainer import new_or_unfinished
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import Deployment
from tests.support.newest_weights import newest_weights
from tests.support.solo import dies_at


def traced(file: Any) -> set[str]:
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event["name"].startswith("step ")}


def test_a_traced_run_ends_with_the_same_weights_and_its_trace(here: Deployment) -> None:
    plain = here.trainer().train()
    run = here.trainer(profiling={"steps": "3:6"}).train()
    assert newest_weights(run) == newest_weights(plain)
    [trace] = (run / "profile").iterdir()
    assert trace.name == "rank0-steps3-6.json.gz"
    assert traced(trace) == {"step 3", "step 4", "step 5"}
    assert not (plain / "profile").exists()


@pytest.mark.story
def test_a_run_goes_on_with_other_steps_traced(here: Deployment) -> None:
    """What is only looked at need not be as it was when the run began."""
    began = here.trainer()
    dies = replace(began, on_step=dies_at(7))
    with pytest.raises(KeyboardInterrupt):
        dies.train()
    value = here.experiment(resources={"num_workers": 1}, profiling={"steps": "4:8"})
    goes_on = new_or_unfinished(parse_experiment(value, where="test"))
    assert goes_on.resume is not None
    run = goes_on.train()
    [trace] = (run / "profile").iterdir()
    # The last commit was of step 5, or an earlier one if that was not whole when the driver died.
    assert trace.name in ("rank0-steps5-8.json.gz", "rank0-steps4-8.json.gz")
    other = parse_experiment(value | {"seed": 5}, where="test")
    assert new_or_unfinished(other).resume is None


@pytest.mark.parametrize("steps", ["10:13", "3", "a:b", "5:5", "6:2", "0:101", "-1:3"])
def test_a_range_that_cannot_be_traced_is_refused_before_anything_starts(
    steps: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"profiling\.steps"):
        Deployment(tmp_path / "here").trainer(profiling={"steps": steps})
