"""Runs whose gradients torch's DDP or FSDP2 sums, on a real cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import govray
from govray.checkpoint import commit_folder
from govray.checkpoint.sharded_file import part_name
from govray.governance.attestation import model_folder
from govray.train import GovernedTrainer
from govray.train.attest.write_model import write_model
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment, read_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment
from tests.support.tree import ROOT

pytestmark = pytest.mark.usefixtures("cluster")


def last(run: Path) -> commit_folder.Committed:
    found = snapshot.latest(run)
    assert found is not None
    return commit_folder.load(found[0])


def trainer_of(deployment: Deployment, aggregator: str) -> GovernedTrainer:
    experiment = deployment.experiment(name=f"by-{aggregator}", aggregator=aggregator)
    return from_experiment(parse_experiment(experiment, where="test"))


def trained(deployment: Deployment, aggregator: str) -> Path:
    """A run whose model verifies."""
    run = trainer_of(deployment, aggregator).train()
    govray.verify(write_model(run, deployment.signers["operator"]), trust_root=deployment.root)
    return run


@pytest.fixture(scope="module")
def sharded(cluster: None, deployment: Deployment) -> Path:
    return trained(deployment, "fsdp2")


@pytest.mark.parametrize("aggregator", ["ddp", "fsdp2"])
def test_it_sums_to_the_weights_of_the_governed_aggregator(
    finished: Path, deployment: Deployment, aggregator: str, request: pytest.FixtureRequest
) -> None:
    by_torch = (
        request.getfixturevalue("sharded")
        if aggregator == "fsdp2"
        else trained(deployment, aggregator)
    )
    expected, found = last(finished), last(by_torch)
    # Whole tensors under the same names, whoever held them while training.
    assert expected.names == found.names
    for file in (
        model_folder.WEIGHTS,
        model_folder.adapter_files("acme")[1],
        "optimizer.safetensors",
    ):
        ones, others = expected.tensors(file), found.tensors(file)
        assert ones.keys() == others.keys()
        for name, tensor in ones.items():
            assert (tensor - others[name]).norm() <= 1e-3 * tensor.norm(), name
    assert expected.files["ledger.jsonl"] != b""


@pytest.mark.story
def test_workers_hold_two_copies_as_the_page_says(
    finished: Path, deployment: Deployment, tmp_path: Path
) -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "aggregators.md").read_text(), re.S)
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(deployment.experiment(name="hsdp") | yaml.safe_load(block)))
    run = from_experiment(read_experiment(file)).train()
    govray.verify(write_model(run, deployment.signers["operator"]), trust_root=deployment.root)
    expected, found = last(finished), last(run)
    assert {name for name in found.entries if name.startswith("parts/")} == {
        part_name(name, rank, 2)
        for name in (model_folder.WEIGHTS, "optimizer.safetensors")
        for rank in range(2)
    }
    others = found.tensors(model_folder.WEIGHTS)
    for name, tensor in expected.tensors(model_folder.WEIGHTS).items():
        assert (tensor - others[name]).norm() <= 1e-3 * tensor.norm(), name
    assert json.loads(found.files["state.json"])["worldSize"] == 4
