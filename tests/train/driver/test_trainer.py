"""What an experiment file chooses reaches the workers' order, and nothing is chosen twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from govray.errors import UsageError
from govray.train.checkpoint.retention import Rules
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment, read_experiment, read_yaml
from govray.train.inputs.run_settings import RunSettings
from tests.support.tree import ROOT

JOB = ROOT / "jobs" / "train.yaml"

CHOSEN = {
    "seed": 5,
    "max_rows": 3,
    "aggregator": "ddp",
    "collective_timeout_s": 77,
    "optimizer": {"clip_norm": 0.5},
    "checkpoint": {"every_steps": 9, "save_trial_best": 2, "save_trial_latest": 4},
    "resources": {"cpus_per_worker": 2},
}


def test_an_experiments_settings_are_the_orders() -> None:
    trainer = from_experiment(parse_experiment(read_yaml(JOB) | CHOSEN, where="test"))
    expected = RunSettings(
        seed=5,
        clip_norm=0.5,
        max_rows=3,
        aggregator="ddp",
        collective_timeout_s=77,
        checkpoint_every=9,
        keep=Rules(best=2, latest=4),
        threads=2,
    )
    assert trainer.settings == expected
    assert type(trainer.settings) is RunSettings


def test_an_argument_replaces_what_the_experiment_says() -> None:
    experiment = parse_experiment(read_yaml(JOB) | CHOSEN, where="test")
    assert from_experiment(experiment, commit_at=(2,), seed=6).settings.seed == 6


def test_the_copies_of_the_page_are_an_experiments(tmp_path: Path) -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "aggregators.md").read_text(), re.S)
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(read_yaml(JOB) | yaml.safe_load(block)))
    trainer = from_experiment(read_experiment(file))
    assert (trainer.aggregator, trainer.replicate, trainer._workers) == ("fsdp2", 2, 4)


def test_copies_that_the_workers_cannot_hold_are_refused_before_anything_is_read() -> None:
    experiment = parse_experiment(read_yaml(JOB) | {"aggregator": "fsdp2"}, where="test")
    with pytest.raises(UsageError, match="2 workers can't hold 3 copies"):
        from_experiment(experiment, replicate=3).train()


def test_a_setting_out_of_range_is_refused_before_anything_is_read() -> None:
    experiment = parse_experiment(read_yaml(JOB), where="test")
    with pytest.raises(UsageError, match="clip_norm is 0"):
        from_experiment(experiment, clip_norm=0.0)
