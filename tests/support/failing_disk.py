"""A run whose workers fail with what a log policy looks for, on the cluster of RAY_ADDRESS."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from govray.engine.model import gpt
from govray.train.driver.ray_cluster import ray_running
from govray.train.driver.trainer import GovernedTrainer
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import Deployment

GPT = gpt.GPT


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    raise OSError("disk 3 is read-only")


def main(folder: Path) -> None:
    """Train until no node is left."""
    text = Deployment(folder).experiment(
        name="failing",
        entrypoint="tests.support.failing_disk:GPT",
        max_restarts=5,
        resources={"num_workers": 1, "cpus_per_worker": 2},
        log_policies=[{"pattern": "disk * read-only", "action": "exclude_node"}],
    )
    with ray_running():
        GovernedTrainer(parse_experiment(text, where="test")).train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
