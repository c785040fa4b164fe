"""`cluster.yaml` by Ray's own schema, and what the comments in it promise."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

import govray
from tests.support.tree import ROOT

FILE = ROOT / "cluster.yaml"


@pytest.fixture
def cluster_file() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return loaded


def test_ray_accepts_it(cluster_file: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster_file))


def test_ray_s_check_sees_an_error(cluster_file: dict[str, Any]) -> None:
    cluster_file["idle_timeout"] = 10
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout"):
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


def test_every_node_runs_this_version(cluster_file: dict[str, Any]) -> None:
    assert any(f"govray[train]=={govray.__version__}" in c for c in cluster_file["setup_commands"])
