"""Nodes that join a head: a young cluster is given time, and an old one an answer."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
import ray

from govray.train.driver import ray_cluster
from govray.train.driver.ray_cluster import JOIN_S, nodes_in_time


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Looks at a cluster that another started and whose second node joins before the third look."""
    seen: list[int] = []

    def nodes() -> list[dict[str, object]]:
        seen.append(len(seen))
        joined = {"Alive": len(seen) > 2, "Resources": {"CPU": 4.0}}
        return [{"Alive": True, "Resources": {}}, joined]

    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(ray, "nodes", nodes)
    monkeypatch.setattr(ray_cluster, "autoscales", lambda: False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return seen


def has_room(nodes: list[Mapping[str, float]]) -> bool:
    return {"CPU": 4.0} in nodes


def test_a_node_that_joins_a_young_cluster_counts(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "newest_start", time.time)
    said: list[str] = []
    assert nodes_in_time(has_room, on_wait=said.append) == [{}, {"CPU": 4.0}]
    [line] = said
    assert "waiting for more nodes" in line
    assert len(looks) == 3


@pytest.mark.parametrize("case", ["old", "started here", "autoscaled"])
def test_where_no_node_joins_the_answer_comes_at_once(
    looks: list[int], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    age = JOIN_S + 1 if case == "old" else 0
    monkeypatch.setattr(ray_cluster, "newest_start", lambda: time.time() - age)
    monkeypatch.setattr(ray_cluster, "autoscales", lambda: case == "autoscaled")
    if case == "started here":
        monkeypatch.delenv("RAY_ADDRESS")
    assert nodes_in_time(has_room) == [{}]
    assert len(looks) == 1
