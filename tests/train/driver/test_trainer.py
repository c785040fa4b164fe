"""What an experiment file chooses reaches the workers' order, and nothing is chosen twice."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from govray.engine.collective.step_settings import StepSettings
from govray.train.checkpoint.retention import Rules
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment, read_experiment, read_overridden
from tests.support.page_commands import part
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
    experiment = parse_experiment(read_overridden(JOB)[0] | CHOSEN, where="test")
    expected = StepSettings(
        seed=5, clip_norm=0.5, max_rows=3, aggregator="ddp", collective_timeout_s=77
    )
    assert experiment.settings == expected
    assert (experiment.commit_steps, experiment.threads) == (9, 2)
    assert experiment.keep == Rules(best=2, latest=4)


def test_the_copies_of_the_page_are_an_experiments(tmp_path: Path) -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", part("docs/training-modes.md", "Aggregators"), re.S)
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(read_overridden(JOB)[0] | yaml.safe_load(block)))
    found = read_experiment(file)
    workers = GovernedTrainer(found).workers
    assert (found.aggregator, found.copies, workers) == ("fsdp2", 2, 4)
