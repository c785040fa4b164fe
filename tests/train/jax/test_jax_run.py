"""docs/jax.md: a loop over JAX trains, resumes, replays, and ends in a verified model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from govray.files.place import place
from govray.governance.attestation import model_folder
from govray.inference.generation import generate
from govray.inference.served_model import load
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


@pytest.fixture(scope="module")
def attested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run of the built-in Flax GPT, attested."""
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        folder = tmp_path_factory.mktemp("flax")
        experiment = written(
            folder, entrypoint="govray.jax.gpt:FlaxGPT", storage_path=str(folder / "runs")
        )
        yield Path(str(from_experiment(experiment).train(attest=True)))


def test_its_model_answers_with_and_without_an_adapter(attested: Path) -> None:
    root = attested.parents[1] / "root.json"
    served = load(attested / "model", trust_root=root)
    assert served.names == ("acme",)
    base, adapted = (generate(served, "acme says", adapter=a, max_tokens=4) for a in (None, "acme"))
    assert base.tokens == adapted.tokens == 4
    shown = torch.tensor([[1, 2, 3]])
    with served.adapters.active("acme"):
        read = served.model(shown)
    assert not torch.equal(read, served.model(shown))
    # What comes behind changes nothing before it, so filling up is exact.
    longer = served.model(torch.tensor([[1, 2, 3, 4, 5]]))
    assert torch.equal(longer[:, :3], served.model(shown))


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
