"""A run that asks for GPUs: refused before anything is read where none can come."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
import torch
import torch.distributed as dist
import yaml

from govray.errors import UsageError
from govray.train.driver import gpu_request
from govray.train.driver.attempts import fix_kernels
from govray.train.driver.gpu_request import backends, require_gpus
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import Experiment, parse_experiment
from tests.support.deployment import Deployment
from tests.support.page_commands import part


@pytest.fixture
def nodes_are(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``nodes_are(gpus_of_each_node, autoscales)`` is what Ray says from then on."""

    def says(gpus: list[float], autoscales: bool = False) -> None:
        nodes = [
            {"Alive": True, "Resources": {"CPU": 4.0} | ({"GPU": n} if n else {})} for n in gpus
        ]
        gone = {"Alive": False, "Resources": {"GPU": 8.0}}
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "nodes", lambda: [*nodes, gone])
        monkeypatch.setattr(gpu_request, "autoscales", lambda: autoscales)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)

    return says


def scaling(gpus: float, workers: int = 2) -> ray.train.ScalingConfig:
    return ray.train.ScalingConfig(
        num_workers=workers, use_gpu=gpus > 0, resources_per_worker={"CPU": 0.5, "GPU": gpus}
    )


@pytest.mark.parametrize(
    ("asked", "nodes", "said"),
    [
        (1, [0, 0], "a worker asks for 1 GPU, the cluster has none"),
        (2, [1, 1], "a worker asks for 2 GPUs, the cluster has 1 on a node at most"),
        (0.5, [0], "a worker asks for 0.5 of a GPU, the cluster has none"),
    ],
)
def test_a_gpu_that_cannot_come_is_refused(
    nodes_are: Any, asked: float, nodes: list[float], said: str
) -> None:
    nodes_are(nodes)
    with pytest.raises(UsageError, match=f"resources.gpus_per_worker: {said}, and no autosc"):
        require_gpus(scaling(asked))


def test_it_is_said_before_anything_is_read(nodes_are: Any, tmp_path: Path) -> None:
    nodes_are([0])
    here = Deployment(tmp_path)
    value = here.experiment(resources={"num_workers": 1, "gpus_per_worker": 1})
    with pytest.raises(UsageError, match=r"resources\.gpus_per_worker"):
        GovernedTrainer(parse_experiment(value, where="test")).train()
    assert not (tmp_path / "runs").exists()


def test_groups_carry_tensors_of_the_host_and_of_the_device() -> None:
    assert backends(scaling(1)) == "cpu:gloo,cuda:nccl"
    assert backends(scaling(0)) is None  # Ray's choice is gloo
    assert backends(None) is None
    assert dist.BackendConfig(dist.Backend(backends(scaling(1)))).get_device_backend_map() == {
        "cpu": "gloo",
        "cuda": "nccl",
    }


PAGE = part("docs/training-modes.md", "Devices")


def test_the_experiment_of_the_page_is_one(tmp_path: Path) -> None:
    (said,) = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.S))
    found = parse_experiment(Deployment(tmp_path).experiment(**said), where="test")
    assert found.resources.gpus_per_worker == 1
    assert found.chosen_kernels == {"run.deterministic": "on"}
    assert found.model_dump(mode="json")["deterministic"] is True


def test_by_default_no_kernels_are_chosen(tmp_path: Path) -> None:
    found = parse_experiment(Deployment(tmp_path).experiment(), where="test")
    assert Experiment.model_validate(found.model_dump(mode="json")) == found
    assert found.chosen_kernels == {}


def test_the_switch_reaches_torch_and_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    try:
        fix_kernels()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
