"""docs/jax.md: a loop over JAX trains, resumes, replays, and ends in a verified model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import optax
import pytest
import ray
import torch
import yaml

import govray
from govray.engine.jax.flax_framework import FlaxFramework
from govray.errors import GovrayError, Refused, UsageError
from govray.platform.inference.generation import generate
from govray.platform.inference.served_model import load
from govray.storage.place import place
from govray.train.checkpoint import commit_folder
from govray.train.driver.preparation import Preparation
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from govray.train.jax import flax_loop
from govray.train.jax.run_start import FlaxModel
from govray.train.run_folder.environment_probe import environment_here
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.solo import run_here
from tests.support.tiny_flax import EVERYTHING, Tiny, tiny_step
from tests.support.tree import ROOT

PAGE = (ROOT / "docs" / "jax.md").read_text()
BY_CLASS, BY_LOOP = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
LOOP = re.findall(r"```python\n(.*?)```", PAGE, re.S)[0]


def written(folder: Path, lines: str, code: str = LOOP, **changes: Any) -> Experiment:
    """The page's files in a deployment of their own."""
    (folder / "my_loop.py").write_text(code)
    value = Deployment(folder).experiment() | {"storage_path": str(folder / "runs")}
    value |= yaml.safe_load(lines) | changes
    (folder / "jax.yaml").write_text(yaml.safe_dump(value))
    return parse_experiment(value, where="jax.yaml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, that is no longer searched afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("my_loop", None)
    return tmp_path


@pytest.mark.story
def test_two_workers_of_a_cluster_end_in_a_verified_model(
    here: Path, cluster: None, forked: Forked
) -> None:
    experiment = written(here, BY_LOOP, storage_path="runs", max_steps=4)
    done = subprocess.run(
        [forked.govray, "train", "jax.yaml"],
        env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = here.glob("runs/tiny-*")
    model = govray.verify(run / "model", trust_root=Path(experiment.governance.trust_root))
    assert {leaf.world_size for leaf in model.ledger.steps} == {2}
    record = (run / "record" / "run.json").read_text()
    assert '"run.framework":"jax"' in record
    assert '"optax":' in record


REFUSED: dict[str, dict[str, Any]] = {
    "aggregator": {"aggregator": "ddp"},
    "precision": {"precision": "bf16"},
    "ema": {"ema": {"decay": 0.9}},
    "deterministic": {"deterministic": True},
    "pretrained": {"pretrained": "weights.safetensors"},
    "optimizer.name": {"optimizer": {"name": "torch.optim.SGD"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_torchs_is_refused_by_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run_here(monkeypatch)
    with pytest.raises(UsageError, match=rf"{name} is .*over torch alone"):
        GovernedTrainer(written(here, BY_CLASS, **REFUSED[name])).train()


def test_a_policy_that_measures_is_refused_before_data_is_read(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped one does. Without that section the same run begins to prepare."""
    run_here(monkeypatch)

    def prepare(*_: object) -> None:
        raise InterruptedError("preparing")

    monkeypatch.setattr(Preparation, "data", prepare)
    shipped = (ROOT / "policies" / "licences.yaml").read_text()
    shipped = re.sub(r"valid: .*", "valid: {from: 2020-01-01, until: 2099-01-01}", shipped)
    deployment = Deployment(here)
    for policy, kind, says in (
        (shipped, UsageError, "memorization in the policy licences v1 is built over torch alone"),
        (shipped[: shipped.index("memorization:")], InterruptedError, "preparing"),
    ):
        value = deployment.experiment() | yaml.safe_load(BY_CLASS)
        value["governance"] |= {"policy": str(deployment.sign_policy(policy))}
        with pytest.raises(kind, match=says):
            GovernedTrainer(parse_experiment(value, where="jax.yaml")).train()


STARTED = """
from pathlib import Path
from govray.engine.jax.gpt import FlaxGPT, loss
from govray.train.inputs.order import Assignment, current

WEIGHTS = Path("start.safetensors")

class Started(FlaxGPT):
    @staticmethod
    def starts_from(hyperparameters):
        return [WEIGHTS]

    def __init__(self, *words, **names):
        super().__init__(*words, **names)
        if isinstance(current.get(), Assignment):  # behind the driver's look at it
            WEIGHTS.write_bytes(b"others")
"""


def test_a_start_that_changed_since_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    (here / "start.safetensors").write_bytes(b"some")
    experiment = written(here, BY_CLASS, STARTED, entrypoint="my_loop:Started")
    with pytest.raises(Refused, match="the file changed since the run began"):
        GovernedTrainer(experiment).train()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    """The built-in Flax GPT's experiment, and the folder of its run, attested."""
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        experiment = written(tmp_path_factory.mktemp("flax"), BY_CLASS)
        return experiment, Path(str(GovernedTrainer(experiment).train(attest=True)))


@pytest.mark.slow
def test_its_model_answers_with_and_without_an_adapter(trained: tuple[Experiment, Path]) -> None:
    experiment, run = trained
    served = load(run / "model", trust_root=Path(experiment.governance.trust_root))
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


def test_what_is_attested_of_the_device_is_what_jax_computed_on(
    trained: tuple[Experiment, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch may see a GPU that JAX was not installed for, or no TPU."""
    experiment, run = trained
    root = Path(experiment.governance.trust_root)
    attested = govray.verify(run / "model", trust_root=root).attestation.environment
    assert attested.device == "cpu"
    assert attested.settings["jax.defaultMatmulPrecision"] == "default"
    assert attested.settings["jax.enableX64"] == "False"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    framework = tiny_step(Tiny(), {"open": EVERYTHING}).framework
    assert isinstance(framework, FlaxFramework)
    device, settings = FlaxModel(framework, {}).computes_on()
    probed = environment_here(seed=0, threads=1, source=None, chosen=settings, device=device)
    assert probed.device == "cpu"
    # Control: what torch would say.
    assert environment_here(seed=0, threads=1, source=None).device == "a GPU"


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bytes_and_under_no_other_optimizer(
    trained: tuple[Experiment, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    experiment, whole = trained

    def fails(step: int, metrics: object) -> None:
        if step == 7:
            raise InterruptedError

    before = set(whole.parent.glob("tiny-*"))
    with pytest.raises(InterruptedError):
        GovernedTrainer(experiment, on_step=fails).train()
    [broken] = set(whole.parent.glob("tiny-*")) - before
    with monkeypatch.context() as other:
        other.setattr(flax_loop, "optimizer_of", lambda _: optax.sgd(0.1, momentum=0.9))
        with pytest.raises(GovrayError, match=r"tensor .* is (missing|unknown)"):
            GovernedTrainer(experiment, resume=broken).train()
    GovernedTrainer(experiment, resume=broken).train()
    assert files_of(broken) == files_of(whole)


def files_of(run: Path) -> dict[str, bytes]:
    """What the last commit holds of the model and its optimizer."""
    found = snapshot.latest(place(str(run)))
    assert found is not None
    committed = commit_folder.open_commit(found[0])
    names = [name for name in committed.names if name.endswith(".safetensors")]
    assert {"model.safetensors", "optimizer.safetensors"} < {*names}
    return {name: (place(str(found[0])) / name).read_bytes() for name in names}
