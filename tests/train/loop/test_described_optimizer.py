"""Optimizers by import path: what a file says is what is built, and a mistake is named first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from govray.errors import GovrayError
from govray.train.driver.trainer import GovernedTrainer
from govray.train.experiment.sections import Optimizer
from govray.train.inputs.experiment_config import read_experiment
from govray.train.loop.described_optimizer import check_optimizer, make_optimizer
from tests.support.deployment import Deployment
from tests.support.page_commands import part


class Tensorless:
    """Something to name that is no optimizer."""


def a_parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(3, 2))


@pytest.mark.parametrize("path", ["torch.optim.SGD", "torch.optim:SGD", "torch.optim.sgd.SGD"])
def test_an_import_path_with_arguments_is_that_class_with_them(path: str) -> None:
    arguments = {"momentum": 0.9, "nesterov": True}
    optimizer = make_optimizer(Optimizer(name=path, lr=0.1, arguments=arguments), [a_parameter()])
    group = optimizer.param_groups[0]
    assert type(optimizer) is torch.optim.SGD
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.1, 0.9, True)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"arguments": {"momentun": 0.9}}, r"optimizer\.arguments: .*did you mean 'momentum'"),
        ({"arguments": {"momentum": -1}}, "Invalid momentum value: -1"),
        ({"arguments": {"nesterov": True}}, "Nesterov momentum requires"),
        ({"arguments": {"params": []}}, "params is what govray gives itself"),
        ({"name": "torch.optim.Sgd"}, r"optimizer\.name: .*did you mean 'SGD'"),
        ({"name": "torch.optim.Optimizer"}, "is no Optimizer to use"),
        ({"name": f"{__name__}:Tensorless"}, "is no Optimizer to use"),
        ({"name": "nowhere.SGD"}, "can't be imported"),
        ({"name": "torch.optim.LBFGS"}, r"step of LBFGS needs an argument \(closure\)"),
        ({"name": "torch.optim.SparseAdam"}, "sparse gradients only"),
    ],
)
def test_a_mistake_is_named_before_anything_starts(described: Any, message: str) -> None:
    with pytest.raises(GovrayError, match=message):
        check_optimizer(Optimizer(**{"name": "torch.optim.SGD", **described}))


BLOCKS = re.findall(
    r"```yaml\n(.*?)```", part("docs/experiment-file.md", "Optimizer and schedule"), re.S
)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_page_is_an_experiments(block: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(yaml.safe_dump(Deployment(tmp_path).experiment() | yaml.safe_load(block)))
    experiment = read_experiment(file)
    assert GovernedTrainer(experiment).experiment == experiment


def test_the_first_block_is_the_default() -> None:
    said = yaml.safe_load(BLOCKS[0])["optimizer"]
    assert Optimizer(**said) == Optimizer(warmup_steps=20)
