"""docs/optimizer.md: each block is accepted where a user gives it, with all its checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from govray.train.driver.trainer import from_experiment
from govray.train.experiment.sections import Optimizer
from govray.train.inputs.experiment_config import read_experiment
from tests.support.deployment import Deployment
from tests.support.tree import ROOT

BLOCKS = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "optimizer.md").read_text(), re.S)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_page_is_an_experiments(block: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(Deployment(tmp_path).experiment() | yaml.safe_load(block)))
    experiment = read_experiment(file)
    assert from_experiment(experiment).experiment == experiment


def test_the_first_block_is_the_default() -> None:
    said = yaml.safe_load(BLOCKS[0])["optimizer"]
    assert Optimizer(**said) == Optimizer(warmup_steps=20)
