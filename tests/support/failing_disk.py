"""A run on two nodes whose workers print what a log policy looks for, and fail."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from torch import Tensor, nn

from govray.engine.model import gpt
from govray.train.driver.ray_cluster import start_ray
from govray.train.driver.trainer import from_experiment
from govray.train.inputs.experiment_config import parse_experiment
from tests.support.deployment import Deployment

GPT = gpt.GPT


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    raise OSError("disk 3 is read-only")


def main(folder: Path, python: str) -> None:
    """Train on two nodes until none is left."""
    text = Deployment(folder).experiment(
        name="failing",
        entrypoint=f"{__spec__.name}:GPT",
        max_restarts=5,
        resources={"num_workers": 1, "cpus_per_worker": 2},
        log_policies=[{"pattern": "disk * read-only", "action": "exclude_node"}],
    )
    sys.executable = python
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=3)
        start_ray(cluster.address)
        from_experiment(parse_experiment(text, where="test")).train()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
