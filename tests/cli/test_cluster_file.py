"""`cluster.yaml` and `deploy/gcp.yaml` by Ray's own schema, and what their comments promise."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.support.tree import ROOT

FILES = ("cluster.yaml", "deploy/gcp.yaml")


@pytest.fixture(params=FILES)
def cluster_file(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / request.param).read_text())
    return loaded


def test_ray_accepts_it(cluster_file: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster_file))


def test_the_head_holds_no_work_and_no_port_is_open_without_a_token(
    cluster_file: dict[str, Any],
) -> None:
    head = cluster_file["available_node_types"][cluster_file["head_node_type"]]
    assert head["resources"]["CPU"] == 0
    starts = [
        command
        for command in cluster_file["head_start_ray_commands"]
        + cluster_file["worker_start_ray_commands"]
        if "ray start" in command
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
