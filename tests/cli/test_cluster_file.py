"""`cluster.yaml` and `deploy/gcp.yaml` by Ray's own schema, and what their comments promise."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

import govray
from tests.support.tree import ROOT

FILES = ("cluster.yaml", "deploy/gcp.yaml")


@pytest.fixture(params=FILES)
def cluster_file(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / request.param).read_text())
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


def test_a_pool_has_nodes_on_demand_and_spot_nodes_of_one_kind(
    cluster_file: dict[str, Any],
) -> None:
    types = dict(cluster_file["available_node_types"])
    del types[cluster_file["head_node_type"]]
    by_pool: dict[str, dict[str, Any]] = {}
    for each in types.values():
        market = each["labels"]["ray.io/market-type"]
        by_pool.setdefault(each["labels"]["pool"], {})[market] = each
    assert by_pool.keys() == {"cpu", "gpu"}
    for pool, markets in by_pool.items():
        assert markets.keys() == {"spot", "on-demand"}
        kept, spot = markets["on-demand"], markets["spot"]
        assert kept["resources"] == spot["resources"]
        assert ("GPU" in spot["resources"]) == (pool == "gpu")
        assert spot["priority"] > kept.get("priority", 0)
        assert "spot" in str(spot["node_config"]) or "preemptible" in str(spot["node_config"])
        assert "spot" not in str(kept["node_config"])
        assert "preemptible" not in str(kept["node_config"])
    assert cluster_file["max_workers"] >= max(each["max_workers"] for each in types.values())


def test_the_image_that_the_comments_offer_is_by_digest_and_ray_accepts_it() -> None:
    text = (ROOT / "cluster.yaml").read_text()
    marked = yaml.safe_load(re.sub(r"^#: ", "", text, flags=re.M))
    validate_config(prepare_config(marked))
    assert re.search(r"@sha256:[0-9a-f]{64}$", marked["docker"]["image"])
