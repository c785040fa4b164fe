"""docs/own-loop.md: a loop of one's own trains, resumes, replays, and ends in a verified model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from govray.errors import UsageError
from govray.governance.attestation import model_folder
from govray.storage.place import place
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.solo import run_here
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "own-loop.md").read_text()
LOOP, FILE, COMMANDS = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE, re.S)[0] for kind in ("python", "yaml", "bash")
)


def written(folder: Path, code: str = LOOP, name: str = "my_loop", **changes: Any) -> Experiment:
    """The page's files in a deployment of their own."""
    (folder / f"{name}.py").write_text(code)
    value = Deployment(folder).experiment() | yaml.safe_load(FILE) | {"storage_path": "runs"}
    value |= {"entrypoint": f"{name}:train_loop", **changes}
    (folder / "own.yaml").write_text(yaml.safe_dump(value))
    return parse_experiment(value, where="own.yaml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, that is no longer searched afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_it_gives_the_weights_of_the_builtin_loop_and_resumes_to_them(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    own = written(here, name="first_loop")
    builtin = own.model_copy(update={"entrypoint": "govray.engine.gpt:GPT"})

    def weights(experiment: Experiment, **more: Any) -> bytes:
        found = snapshot.latest(GovernedTrainer(experiment, **more).train())
        assert found is not None
        return (place(str(found[0])) / model_folder.WEIGHTS).read_bytes()

    assert weights(own) == weights(builtin)

    def fails(step: int, metrics: object) -> None:
        if step == 7:
            raise InterruptedError

    before = set(here.glob("runs/tiny-*"))
    with pytest.raises(InterruptedError):
        GovernedTrainer(own, on_step=fails).train()
    [broken] = set(here.glob("runs/tiny-*")) - before
    assert weights(own, resume=broken) == weights(builtin)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def train_loop(config):\n    config['absent']\n", "failed before it called govern"),
        ("def train_loop(config):\n    pass\n", "ended without calling govern"),
        ("def train_loop(config:\n    pass\n", "can't be imported: SyntaxError"),
        ("def trainloop(config):\n    pass\n", "has no attribute 'train_loop'"),
        ("def train_loop(settings):\n    pass\nloss = 1\n", "one parameter called config"),
    ],
)
def test_a_mistake_is_one_line_before_workers_start(
    here: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    run_here(monkeypatch)
    own = written(here, code, name=f"loop_{abs(hash(code))}")
    with pytest.raises(UsageError, match=message) as caught:
        GovernedTrainer(own).train()
    assert str(caught.value).startswith("entrypoint loop_")
    assert not [*here.glob("runs/tiny-*")]
