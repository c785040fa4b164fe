"""docs/jax.md: a loop over JAX trains, resumes, replays, and ends in a verified model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from govray.files.place import place
from govray.governance.attestation import model_folder
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.solo import run_here

LOOP = """
import optax
from flax import nnx

from govray.jax.gpt import FlaxGPT, loss
from govray.train.jax import govern


def train_loop(config):
    model = FlaxGPT(**config["hyperparameters"], rngs=nnx.Rngs(config["seed"]))
    run = govern(model, optax.adamw(config["optimizer"]["lr"]))
    for batch in run.batches():
        run.report(run.step(batch, loss))
"""


def written(folder: Path, code: str = LOOP, name: str = "jax_loop", **changes: Any) -> Experiment:
    (folder / f"{name}.py").write_text(code)
    value = Deployment(folder).experiment() | {"storage_path": "runs", "framework": "jax"}
    value |= {"entrypoint": f"{name}:train_loop", **changes}
    return parse_experiment(value, where="jax.yaml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, that is no longer searched afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def weights(experiment: Experiment, **more: Any) -> bytes:
    found = snapshot.latest(from_experiment(experiment, **more).train())
    assert found is not None
    return (place(str(found[0])) / model_folder.WEIGHTS).read_bytes()


def test_a_run_resumes_to_the_same_bytes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    experiment = written(here)
    whole = weights(experiment)

    def fails(step: int, metrics: object) -> None:
        if step == 7:
            raise InterruptedError

    before = set(here.glob("runs/tiny-*"))
    with pytest.raises(InterruptedError):
        from_experiment(experiment, on_step=fails).train()
    [broken] = set(here.glob("runs/tiny-*")) - before
    assert weights(experiment, resume=broken) == whole
