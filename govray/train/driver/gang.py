"""The gang: all workers of a run, which start together or not at all.

Ray waits for ever for a gang that no node may ever hold. So before a run reads anything, its
gang's room is asked for. Where there is an autoscaler, it brings nodes while the run's data are
admitted. Where it says that it can't, and nothing else holds the nodes that are there, the run is
refused.

While others hold nodes the run waits, and says so: they may end. Only the second autoscaler (v2)
names in the cluster's status what it can't bring. Under the first a gang too large waits, and says
so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import ray
import ray.train
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is compiled
from ray.core.generated.autoscaler_pb2 import (  # type: ignore[attr-defined]  # so is its schema
    DEAD,
    GetClusterStatusReply,
)
from ray.util import placement_group, remove_placement_group

from govray.errors import GovrayError, UsageError
from govray.governance.submission.pool_labels import NODE_ID
from govray.train.driver.ray_cluster import autoscales, nodes_alive, nodes_in_time
from govray.train.driver.waiting_line import WaitingLine
from govray.train.experiment.resources import ACCELERATOR

Resources = Mapping[str, float]

LOOK_S = 2.0
"""Seconds between two looks at the cluster's status."""

HOPELESS_LOOKS = 5
"""Looks in a row after which nothing is expected any more. The autoscaler's status is seconds old,
and a node that was brought in vain is known only when it fails."""


def await_room(
    scaling: ray.train.ScalingConfig | None,
    *,
    on_wait: Callable[[str], None] = lambda line: None,
) -> None:
    """Return when the cluster has had room for all workers at once.

    Nothing is kept: Ray Train asks for the room again. On a cluster without an autoscaler, this
    only compares with what the nodes have in all, once they have had time to join. Before Ray has
    started nothing is known, and nothing refused.

    Args:
        scaling: Of the run; of an elastic one the fewest workers count.
        on_wait: Called with a line that says for what the run waits.

    Raises:
        UsageError: The gang is larger than the cluster may ever be.
    """
    gang = gang_of(scaling)
    if not gang or not ray.is_initialized():
        return
    assert scaling is not None
    labels, placement = labels_of(scaling), str(scaling.placement_strategy)
    words = need(gang, labels, placement)
    if not autoscales():
        nodes = nodes_in_time(
            lambda nodes: _room(nodes, gang, placement) >= len(gang), labels=labels, on_wait=on_wait
        )
        if (room := _room(nodes, gang, placement)) < len(gang):
            raise _too_large(words, labels, f"the cluster has room for {room}, and no autoscaler")
        return
    group = placement_group(
        [dict(each) for each in gang],
        strategy=placement,
        bundle_label_selector=[labels] * len(gang) if labels else None,
    )
    line, hopeless = WaitingLine(words, "run"), 0
    try:
        while not group.wait(LOOK_S):
            if said := line.look(1, time.monotonic()):
                on_wait(said)
            hopeless = hopeless + 1 if never_fits(_status(), gang) else 0
            if hopeless >= HOPELESS_LOOKS:
                raise _too_large(
                    words, labels, "its autoscaler may not bring nodes with so much room"
                )
    finally:
        remove_placement_group(group)


def gang_of(scaling: ray.train.ScalingConfig | None) -> list[Resources]:
    """What each worker of the gang asks Ray for; nothing for a run in this process."""
    if scaling is None:
        return []
    workers: Any = scaling.num_workers
    least = workers if isinstance(workers, int) else workers[0]
    return [dict(scaling._resources_per_worker_not_none)] * least


def labels_of(scaling: ray.train.ScalingConfig | None) -> dict[str, str]:
    """The labels that the node of each worker has to have."""
    known: Any = scaling  # Ray's annotation has the older class, without the field
    asked = known.label_selector if scaling else None
    return dict(asked) if isinstance(asked, Mapping) else {}


def elsewhere(scaling: ray.train.ScalingConfig | None, excluded: Collection[str]) -> dict[str, str]:
    """What the node of each worker has to have, if it may be none of these."""
    return {NODE_ID: f"!in({', '.join(sorted(excluded))})", **labels_of(scaling)}


def refuse_nowhere(scaling: ray.train.ScalingConfig | None, excluded: Collection[str]) -> None:
    """Refuse workers that no node may hold any more. An autoscaler may still bring others, and
    before Ray has started nothing is known.

    Raises:
        GovrayError: The nodes that are left have too little room.
    """
    gang, labels = gang_of(scaling), labels_of(scaling)
    if not gang or not excluded or not ray.is_initialized() or autoscales():
        return
    assert scaling is not None
    placement = str(scaling.placement_strategy)
    left = (each["Resources"] for each in nodes_alive(labels) if each["NodeID"] not in excluded)
    if (room := _room(left, gang, placement)) < len(gang):
        raise GovrayError(
            f"the run starts {need(gang, labels, placement)}, and beside the nodes that log "
            f"policies excluded is room for {room}",
            where=f"nodes {', '.join(sorted(excluded))}",
            do="Mend these nodes and start Ray on them anew, or add others; then resume the run",
        )


def _room(nodes: Iterable[Resources], gang: Sequence[Resources], placement: str) -> int:
    return places(nodes, gang[0], placement=placement, least=len(gang))


def places(
    nodes: Iterable[Resources],
    worker: Resources,
    *,
    placement: str = "PACK",
    least: int = 1,
    gangs: int = 1,
) -> int:
    """How many workers fit on nodes that nobody else uses.

    Args:
        nodes: What each node has in all, resource name to amount.
        placement: Ray's strategy. A strict one lets fewer fit.
        least, gangs: How many workers a gang has, and how many gangs there are.
    """
    asked = {name: amount for name, amount in worker.items() if amount > 0}
    fit = [
        max(int(min(node.get(name, 0.0) / amount for name, amount in asked.items()) + 1e-6), 0)
        for node in nodes
        if asked
    ]
    if placement == "STRICT_SPREAD":
        return sum(min(each, gangs) for each in fit)
    return sum(each // least * least if placement == "STRICT_PACK" else each for each in fit)


def never_fits(status: GetClusterStatusReply, gang: Sequence[Resources]) -> bool:
    """Whether the autoscaler says that it can't bring the gang's nodes, though nobody else works.

    While nodes are on their way, or others hold some, it is not known.

    Args:
        status: The cluster's, as its second autoscaler reports it.
    """
    told = status.autoscaling_state
    if told.pending_instances or told.pending_instance_requests:
        return False
    for node in status.cluster_resource_state.node_states:
        if node.status != DEAD and _held(node.total_resources, node.available_resources):
            return False
    ours = _counted(gang)
    return any(
        _counted(request.resources_bundle for request in _requests(each)) == ours
        for each in told.infeasible_gang_resource_requests
    )


_PLACED = {"STRICT_PACK": " on one node", "STRICT_SPREAD": " on nodes of their own"}


def need(
    gang: Sequence[Resources],
    labels: Mapping[str, str] | None = None,
    placement: str = "PACK",
) -> str:
    """What the gang needs, in words."""
    each = " and ".join(_words(name, amount) for name, amount in sorted(gang[0].items()) if amount)
    where = ", ".join(f"{name}={value}" for name, value in sorted((labels or {}).items()))
    return (
        f"{len(gang)} worker{'s' * (len(gang) > 1)} with {each}{' each' * (len(gang) > 1)}"
        + _PLACED.get(placement, "")
        + f" on nodes labelled {where}" * bool(where)
    )


def _words(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / (1 << 30):.4g} GiB memory"
    known = name.startswith(ACCELERATOR)
    return name.removeprefix(ACCELERATOR) if known else f"{amount:g} {name}"


def _requests(gang: Any) -> Iterable[Any]:
    """Of a gang in the cluster's status: in one list, or by the groups that it prefers."""
    return gang.requests or [
        request for one in gang.bundle_selectors[:1] for request in one.resource_requests
    ]


def _counted(bundles: Iterable[Mapping[str, float]]) -> list[list[tuple[str, float]]]:
    return sorted(
        sorted((name, round(amount, 4)) for name, amount in each.items() if amount)
        for each in bundles
    )


def _held(total: Mapping[str, float], available: Mapping[str, float]) -> bool:
    """Whether somebody holds CPUs or GPUs of a node. Memory is the object store's own."""
    return any(available.get(name, 0.0) < total.get(name, 0.0) for name in ("CPU", "GPU"))


def _status() -> GetClusterStatusReply:
    client = GcsClient(ray.get_runtime_context().gcs_address)
    return GetClusterStatusReply.FromString(client.get_cluster_status())


def _too_large(need: str, labels: Mapping[str, str], why: str) -> UsageError:
    return UsageError(
        f"the run starts {need}, and {why}",
        where="resources",
        do="Use fewer workers or less for each, or let the cluster have more nodes"
        + " with these labels" * bool(labels),
    )
