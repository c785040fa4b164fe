"""The page on watching: its experiment fields and its script, each as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import read_experiment
from govray.train.watching.chosen_callbacks import chosen_callbacks
from govray.train.watching.metrics import DECLARED
from govray.train.watching.run_callback import RunCallback
from tests.support.page_commands import part
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "watching.md").read_text()
SHOWN = part("docs/watching.md", "Ray's dashboard")
JOB = (ROOT / "jobs" / "train.yaml").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SHOWN, re.M | re.S)


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda each: each.split(":")[0])
def test_each_block_is_part_of_an_experiment_file(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    [field] = yaml.safe_load(block)
    file = tmp_path / "train.yaml"
    file.write_text(f"{JOB}\n{block}")
    experiment = read_experiment(file)
    callbacks = chosen_callbacks(experiment)
    given: dict[str, Any] = {
        "profiling": bool(experiment.profiling),
        "tensorboard": len(callbacks) == 1,
        "tracking": len(callbacks) == 2,
    }
    assert given[field]
    # What is only looked at is no part of what must be equal where a run resumes.
    other = GovernedTrainer(plain(tmp_path))
    assert GovernedTrainer(experiment).loop_config == other.loop_config
    assert experiment.trains_as(plain(tmp_path))


def plain(folder: Path) -> Any:
    (folder / "plain.yaml").write_text(JOB)
    return read_experiment(folder / "plain.yaml")


def test_the_script_makes_its_callbacks() -> None:
    *_, script = blocks("python")
    names: dict[str, Any] = {}
    exec(script, names)  # of our own page
    assert len(names["callbacks"]) == 4
    assert all(isinstance(each, RunCallback) for each in names["callbacks"])


def test_the_page_names_every_metric() -> None:
    assert [each.name for each in DECLARED if f"`{each.name}" not in PAGE] == []
