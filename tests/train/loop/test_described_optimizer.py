"""Optimizers by import path: what a file says is what is built, and a mistake is named first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from govray.errors import GovrayError, UsageError
from govray.train.experiment.sections import Optimizer
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.loop.described_optimizer import check_optimizer, make_optimizer
from tests.support.tree import ROOT


class Tensorless:
    """Something to name that is no optimizer."""


def a_parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(3, 2))


def test_the_default_is_adamw_as_ever() -> None:
    optimizer = make_optimizer(Optimizer(lr=0.01), [a_parameter()])
    plain = torch.optim.AdamW([a_parameter()], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    assert type(optimizer) is torch.optim.AdamW
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == {
        k: v for k, v in plain.param_groups[0].items() if k != "params"
    }
    assert optimizer.param_groups[0]["fused"] is None  # on a CPU


def test_on_a_gpu_kernels_are_fused_unless_the_file_chose_them() -> None:
    with FakeTensorMode():
        on_gpu = nn.Parameter(torch.ones(3, 2, device="cuda"))
        described = {
            None: Optimizer(),
            "torch.optim.SGD": Optimizer(name="torch.optim.SGD"),
            "torch.optim.RMSprop": Optimizer(name="torch.optim.RMSprop"),  # has no such kernels
        }
        fused = {
            n: make_optimizer(each, [on_gpu]).defaults.get("fused") for n, each in described.items()
        }
        assert fused == {None: True, "torch.optim.SGD": True, "torch.optim.RMSprop": None}
        for chosen in ({"fused": False}, {"foreach": True}):
            own = Optimizer(name="torch.optim.AdamW", arguments=chosen)
            assert not make_optimizer(own, [on_gpu]).defaults["fused"]
        mixed = make_optimizer(Optimizer(), [on_gpu, nn.Parameter(torch.ones(2))])
        assert not mixed.defaults["fused"]


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


def test_an_optimizer_that_does_not_take_the_model_is_refused_by_the_models_shapes() -> None:
    muon = Optimizer(name="torch.optim.Muon")
    check_optimizer(muon)
    with pytest.raises(UsageError, match="Muon only supports 2D parameters"):
        make_optimizer(muon, [nn.Parameter(torch.ones(3, device="meta"))])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "sgd"}, "optimizer.name: give adamw, or an import path"),
        ({"name": "torch.optim.SGD", "weight_decay": 0.1}, "weight_decay: adamw's field"),
        ({"arguments": {"eps": 1.0}}, "write name: torch.optim.AdamW"),
        ({"name": "torch.optim.SGD", "arguments": {"lr": 1.0}}, "arguments.lr: give it as lr"),
        ({"name": "torch.optim.Adam", "arguments": {"eps": "1e-8"}}, "write 1.0e-8"),
    ],
)
def test_a_section_that_contradicts_itself_is_no_experiment(section: Any, message: str) -> None:
    value = yaml.safe_load((ROOT / "jobs" / "train.yaml").read_text()) | {"optimizer": section}
    with pytest.raises(UsageError, match="experiment") as caught:
        parse_experiment(value, where="experiment")
    assert message in str(caught.value)


def test_a_described_optimizer_survives_the_way_to_the_workers() -> None:
    section = {"name": "torch.optim.Adam", "lr": 0.1, "arguments": {"betas": [0.8, 0.9]}}
    value = yaml.safe_load((ROOT / "jobs" / "train.yaml").read_text()) | {"optimizer": section}
    experiment = parse_experiment(value, where="here")
    written = experiment.model_dump(mode="json")
    assert "weight_decay" not in written["optimizer"]
    assert parse_experiment(written, where="again") == experiment
