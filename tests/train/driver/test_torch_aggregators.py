"""Runs whose gradients torch's DDP or FSDP2 sums, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

import govray
from govray.checkpoint import commit_folder
from govray.governance.attestation import model_folder
from govray.train import GovernedTrainer
from govray.train.attest.write_model import write_model
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.state import snapshot
from tests.support.deployment import Deployment

pytestmark = [pytest.mark.story, pytest.mark.usefixtures("cluster")]


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


@pytest.mark.parametrize("aggregator", ["ddp", "fsdp2"])
def test_it_sums_to_the_weights_of_the_governed_aggregator(
    finished: Path, deployment: Deployment, aggregator: str
) -> None:
    by_torch = trained(deployment, aggregator)
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
