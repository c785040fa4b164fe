"""``data: {attention: record}`` from the experiment to the attested model. One rank, no Ray."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import govray
from govray.engine.gpt import loss  # noqa: F401  the entrypoint's
from govray.errors import UsageError
from govray.train.attest.audited_model import load_model
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.loop.entrypoint import load_entrypoint
from tests.support.deployment import Deployment
from tests.support.solo import run_here

SEPARATOR = 256  # the byte tokenizer's


class Without(nn.Module):
    """A model that knows no separator."""

    def __init__(self, context: int, vocabulary: int) -> None:
        super().__init__()


def experiment(deployment: Deployment, attention: str, **changes: object) -> object:
    value = deployment.experiment(
        max_steps=8, checkpoint={"every_steps": 8}, resources={"num_workers": 1}, **changes
    )
    value["data"] = dict(value["data"], attention=attention)
    return parse_experiment(value, where="test")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("deployment"))


def test_records_of_a_row_are_kept_apart_by_the_attested_model(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(monkeypatch)
    weights = {}
    for attention in ("row", "record"):
        run = GovernedTrainer(experiment(deployment, attention)).train(attest=True)
        govray.verify(run / "model", trust_root=deployment.root)
        config = json.loads((run / "model" / "govray.json").read_bytes())
        assert config["hyperparameters"].get("separator") == (
            SEPARATOR if attention == "record" else None
        )
        model = load_model(run).model
        ids = torch.tensor([[1, 2, SEPARATOR, 3], [4, 2, SEPARATOR, 3]])
        same = torch.equal(*model(ids)[:, 2:])
        assert same is (attention == "record")
        weights[attention] = (run / "model" / "model.safetensors").read_bytes()
    assert weights["row"] != weights["record"]


def test_a_model_that_takes_no_separator_is_refused(deployment: Deployment) -> None:
    made = experiment(
        deployment, "record", entrypoint=f"{__name__}:Without", hyperparameters={"context": 8}
    ).resolved(257, SEPARATOR)
    with pytest.raises(UsageError, match="does not take the separator") as refused:
        load_entrypoint(made)
    assert refused.value.where == "data.attention"
