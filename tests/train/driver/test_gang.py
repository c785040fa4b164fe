"""A gang that no cluster may hold is refused; one that may have room some day waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import ray
import ray.train
from hypothesis import given
from hypothesis import strategies as st
from ray.core.generated import autoscaler_pb2 as proto

from govray.errors import UsageError
from govray.train.driver import gang
from govray.train.driver.gang import await_room, gang_of, need, never_fits, places
from govray.train.experiment.resources import Resources

TWO = [{"CPU": 2.0}] * 2
RUNNING, IDLE, DEAD = (getattr(proto, name) for name in ("RUNNING", "IDLE", "DEAD"))


def scaling(workers: Any, cpus: float = 2) -> ray.train.ScalingConfig:
    return ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": cpus})


def status(
    infeasible: list[Mapping[str, float]] = TWO,
    *,
    nodes: tuple[tuple[int, float, float], ...] = ((RUNNING, 2.0, 2.0),),
    coming: int = 0,
    grouped: bool = False,
) -> Any:
    """What an autoscaler reports: nodes as (status, CPUs, CPUs that nobody holds)."""
    told = proto.GetClusterStatusReply()
    requests = [proto.ResourceRequest(resources_bundle=dict(each)) for each in infeasible]
    each = (
        proto.GangResourceRequest(bundle_selectors=[{"resource_requests": requests}])
        if grouped
        else proto.GangResourceRequest(requests=requests)
    )
    told.autoscaling_state.infeasible_gang_resource_requests.append(each)
    for _ in range(coming):
        told.autoscaling_state.pending_instances.append(proto.PendingInstance())
    for state, total, free in nodes:
        told.cluster_resource_state.node_states.append(
            proto.NodeState(
                status=state,
                total_resources={"CPU": total, "memory": 9.0},
                available_resources={"CPU": free, "memory": 1.0},
            )
        )
    return told


@pytest.mark.parametrize("grouped", [False, True])
def test_what_the_autoscaler_cannot_bring_to_an_idle_cluster_never_fits(grouped: bool) -> None:
    assert never_fits(status(grouped=grouped), TWO)
    assert never_fits(status(nodes=(), grouped=grouped), TWO)
    assert never_fits(status(nodes=((DEAD, 2.0, 0.0), (IDLE, 2.0, 2.0))), TWO)


@pytest.mark.parametrize(
    "told",
    [
        status(nodes=((RUNNING, 2.0, 1.0),)),  # others hold a CPU: they may end
        status(coming=1),  # a node is on its way
        status([{"CPU": 2.0}]),  # another gang is too large, not this one
        status([{"CPU": 2.0}, {"CPU": 3.0}]),
        proto.GetClusterStatusReply(),  # nothing is said
    ],
)
def test_a_gang_that_may_have_room_some_day_waits(told: Any) -> None:
    assert not never_fits(told, TWO)


@pytest.mark.parametrize(
    ("nodes", "room"),
    [([2.0, 2.0], 2), ([3.9], 1), ([], 0), ([1.0] * 5, 0), ([0.0, 4.0], 2)],
)
def test_places_are_counted_node_by_node(nodes: list[float], room: int) -> None:
    assert places([{"CPU": cpus} for cpus in nodes], {"CPU": 2.0, "GPU": 0}) == room


@given(st.lists(st.floats(-1, 64), max_size=6), st.floats(0.01, 8))
def test_as_many_places_as_are_counted_do_fit(nodes: list[float], worker: float) -> None:
    room = places([{"CPU": cpus} for cpus in nodes], {"CPU": worker})
    assert 0 <= room * worker <= sum(max(cpus, 0) for cpus in nodes) + 1e-3


def test_of_an_elastic_run_the_fewest_workers_count() -> None:
    assert len(gang_of(scaling((2, 8)))) == 2
    assert gang_of(scaling(0)) == gang_of(None) == []
    assert need(gang_of(scaling(2, 0.5))) == "2 workers with 0.5 CPU each"
    assert need(gang_of(scaling(1, 3))) == "1 worker with 3 CPU"


def test_without_an_autoscaler_a_gang_that_fits_no_nodes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 9}}]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(gang, "autoscales", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS")
    await_room(scaling(2))
    await_room(scaling((2, 9)))
    with pytest.raises(
        UsageError,
        match="resources: the run starts 3 workers with 2 CPU each, and "
        "the cluster has room for 2, and no autoscaler",
    ):
        await_room(scaling(3))


def test_only_nodes_with_the_labels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(**labels: str) -> dict[str, Any]:
        return {
            "Alive": True,
            "Resources": {"CPU": 4.0},
            "Labels": {"ray.io/node-id": "x", **labels},
        }

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: [node(), node(zone="a"), node(zone="b")])
    monkeypatch.setattr(gang, "autoscales", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS")
    labelled = replace(scaling(2), label_selector={"zone": "a"})
    await_room(labelled)
    await_room(scaling(6))
    with pytest.raises(UsageError, match=r"2 CPU each on nodes labelled zone=a, and .* room for 2"):
        await_room(replace(labelled, num_workers=3))


def test_a_type_of_gpu_is_a_resource_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Resources(num_workers=1, gpus_per_worker=1, accelerator_type="A100")
    config = ray.train.ScalingConfig(
        use_gpu=True, resources_per_worker=asked.worker, accelerator_type=asked.accelerator_type
    )
    assert gang_of(config) == [asked.worker]  # as Ray itself names and counts it
    assert need(gang_of(config)) == "1 worker with 0.5 CPU and 1 GPU and A100"
    nodes = [{"CPU": 8, "GPU": 8, f"accelerator_type:{name}": 1} for name in ("T4", "A100")]
    assert places(nodes[:1], asked.worker) == 0
    assert places(nodes, asked.worker) == 8


def test_before_ray_has_started_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    await_room(scaling(1000))
