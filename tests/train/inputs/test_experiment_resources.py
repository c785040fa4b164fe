"""What ``resources`` say of when a run starts is no part of what it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from tests.support.deployment import Deployment


def experiment(folder: Path, **resources: Any) -> Experiment:
    value = Deployment(folder).experiment(resources={"num_workers": 1, **resources})
    return parse_experiment(value, where="test")


@pytest.fixture
def plain(tmp_path: Path) -> Experiment:
    return experiment(tmp_path)


def with_resources(plain: Experiment, **changes: Any) -> Experiment:
    return plain.model_copy(update={"resources": plain.resources.model_copy(update=changes)})


@pytest.mark.parametrize("field", [{"pool": "gpu"}, {"priority": 5}, {"max_workers": 4}])
def test_a_run_goes_on_with_another_place_in_the_queue(
    plain: Experiment, field: dict[str, Any]
) -> None:
    moved = with_resources(plain, **field)
    assert moved != plain
    assert moved.trains_as(plain)
    # The same holds of what the resumed run compares with its record.
    assert from_experiment(moved).train_loop_config == from_experiment(plain).train_loop_config


def test_a_run_with_other_workers_is_another(plain: Experiment) -> None:
    other = with_resources(plain, num_workers=2)
    assert not other.trains_as(plain)
    assert from_experiment(other).train_loop_config != from_experiment(plain).train_loop_config
