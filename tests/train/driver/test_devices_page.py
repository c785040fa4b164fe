"""docs/devices.md: the experiment that it shows, and the switch for deterministic kernels."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import yaml

from govray.train.driver.attempts import fix_kernels
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.inputs.run_settings import run_settings
from tests.support.deployment import Deployment

PAGE = Path(__file__).parents[3] / "docs" / "devices.md"


def test_the_experiment_of_the_page_is_one(tmp_path: Path) -> None:
    (said,) = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S))
    found = parse_experiment(Deployment(tmp_path).experiment(**said), where="test")
    assert found.resources.gpus_per_worker == 1
    assert run_settings(found).chosen_kernels == {"run.deterministic": "on"}
    assert found.model_dump(mode="json")["deterministic"] is True


def test_by_default_no_kernels_are_chosen(tmp_path: Path) -> None:
    found = parse_experiment(Deployment(tmp_path).experiment(), where="test")
    assert Experiment.model_validate(found.model_dump(mode="json")) == found
    assert run_settings(found).chosen_kernels == {}


def test_the_switch_reaches_torch_and_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    try:
        fix_kernels()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
