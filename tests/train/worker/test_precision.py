"""``precision`` from the experiment file to the attested model. One rank, no Ray."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from torch import Tensor

import govray
from govray.engine.collective.step_settings import Precision
from govray.governance.attestation import model_folder
from govray.train.attest.audited_model import load_model
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.stored_tensors import tensors_of
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.page_commands import part
from tests.support.solo import run_here


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("deployment"))


def trained(
    deployment: Deployment,
    *,
    without: tuple[str, ...] = (),
    attest: bool = False,
    **changes: object,
) -> Path:
    value = deployment.experiment(
        max_steps=6, checkpoint={"every_steps": 4}, resources={"num_workers": 1}, **changes
    )
    value["data"] = dict(value["data"], exclude=without)
    return GovernedTrainer(parse_experiment(value, where="test")).train(attest=attest)


def committed(run: Path) -> dict[str, Tensor]:
    """Weights and optimizer state of the base model, by name."""
    found = snapshot.latest(run)
    assert found is not None
    last = commit_folder.load(found[0])
    tensors = tensors_of(last, model_folder.WEIGHTS) | tensors_of(last, "optimizer.safetensors")
    return {name: tensor for name, tensor in tensors.items() if "adapter:" not in name}


def digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    ("precision", "kept"), [("bf16", torch.bfloat16), ("bf16-mixed", torch.float32)]
)
def test_a_run_in_it_is_attested_and_no_other_class_reaches_the_base(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, precision: str, kept: torch.dtype
) -> None:
    run_here(monkeypatch)
    run = trained(deployment, attest=True, precision=precision)
    facts = govray.verify(run / "model", trust_root=deployment.root).attestation
    assert facts.environment.settings["run.precision"] == precision
    tensors = committed(run)
    assert {tensors[name].dtype for name in tensors if "/" not in name} == {kept}
    assert load_model(run).model is not None  # so it can be audited
    without = trained(deployment, precision=precision, without=("acme",))
    assert digests(tensors) == digests(committed(without))
    assert digests(tensors) != digests(committed(trained(deployment)))


def test_checkpointed_activations_change_no_bit_of_a_run(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    plain = digests(committed(trained(deployment)))
    assert digests(committed(trained(deployment, activation_checkpointing=True))) == plain


def test_the_page_says_what_a_file_may_say(deployment: Deployment) -> None:
    page = part("docs/training-modes.md", "Precision and memory")
    said = {
        name: value
        for block in re.findall(r"```yaml\n(.*?)```", page, re.S)
        for name, value in yaml.safe_load(block).items()
    }
    found = parse_experiment(deployment.experiment(**said), where="test")
    assert found.precision == "bf16-mixed"
    assert found.activation_checkpointing
    assert found.compile
    assert found.cuda_graphs
    assert all(f"`{each}`" in page for each in get_args(Precision))
