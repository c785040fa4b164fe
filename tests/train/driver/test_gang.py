"""A gang that no cluster may hold is refused; one that may have room some day waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import ray
import ray.train
from hypothesis import given
from hypothesis import strategies as st
from ray._private.label_utils import validate_label_selector
from ray.core.generated import autoscaler_pb2 as proto

from govray.errors import GovrayError, UsageError
from govray.governance.submission.pool_labels import NODE_ID
from govray.train.driver import gang
from govray.train.driver.gang import (
    await_room,
    elsewhere,
    never_fits,
    places,
    refuse_nowhere,
)

TWO = [{"CPU": 2.0}] * 2
RUNNING, IDLE, DEAD = (getattr(proto, name) for name in ("RUNNING", "IDLE", "DEAD"))


def scaling(workers: Any, **more: Any) -> ray.train.ScalingConfig:
    return ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 2.0}, **more)


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


@given(st.lists(st.floats(-1, 64), max_size=6), st.floats(0.01, 8))
def test_as_many_places_as_are_counted_do_fit(nodes: list[float], worker: float) -> None:
    room = places([{"CPU": cpus} for cpus in nodes], {"CPU": worker})
    assert 0 <= room * worker <= sum(max(cpus, 0) for cpus in nodes) + 1e-3


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
    await_room(scaling(2, placement_strategy="STRICT_PACK"))
    with pytest.raises(UsageError, match=r"each on nodes of their own, and .* has room for 1"):
        await_room(scaling(2, placement_strategy="STRICT_SPREAD"))


@pytest.mark.parametrize(
    ("placement", "least", "gangs", "expected"),
    [
        ("PACK", 2, 1, 6),
        ("SPREAD", 2, 1, 6),
        ("STRICT_PACK", 2, 1, 4),  # one place of each odd node stays empty
        ("STRICT_PACK", 4, 1, 0),
        ("STRICT_SPREAD", 2, 1, 3),
        ("STRICT_SPREAD", 2, 2, 5),
    ],
)
def test_a_strict_placement_lets_fewer_fit(
    placement: str, least: int, gangs: int, expected: int
) -> None:
    nodes = [{"CPU": 3.0}, {"CPU": 1.0}, {"CPU": 2.0}]
    found = places(nodes, {"CPU": 1.0}, placement=placement, least=least, gangs=gangs)
    assert found == expected


def test_workers_go_to_none_of_the_excluded_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(name: str, alive: bool = True) -> dict[str, Any]:
        return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 4.0}}

    monkeypatch.setattr(ray, "nodes", lambda: [node("a"), node("b"), node("c", alive=False)])
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    autoscaled = False
    monkeypatch.setattr(gang, "autoscales", lambda: autoscaled)
    chosen = elsewhere(scaling(2), ["b", "a"])
    assert not validate_label_selector(chosen)
    assert chosen == {NODE_ID: "!in(a, b)"}
    refuse_nowhere(scaling(2), ["a"])
    refuse_nowhere(scaling(4), [])  # it is not for a policy that they wait
    with pytest.raises(GovrayError, match=r"nodes a: the run .* excluded is room for 2") as error:
        refuse_nowhere(scaling(3), ["a"])
    assert error.value.exit_code == 1  # so the queue doesn't try again
    autoscaled = True
    refuse_nowhere(scaling(3), ["a"])
