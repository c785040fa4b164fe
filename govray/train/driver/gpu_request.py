"""A run that asks Ray for GPUs: whether any may come, and what its workers talk through.

Ray waits for ever for a GPU that a cluster doesn't have. So such a run is refused before anything
is read, unless an autoscaler serves the cluster: it may bring one.
"""

from __future__ import annotations

import ray
import ray.train

from govray.errors import UsageError
from govray.train.driver.gang import labels_of
from govray.train.driver.ray_cluster import autoscales, nodes_in_time


def gpus_per_worker(scaling: ray.train.ScalingConfig | None) -> float:
    """What each worker asks for."""
    return float(scaling.num_gpus_per_worker) if scaling else 0.0


def backends(scaling: ray.train.ScalingConfig | None) -> str | None:
    """The process groups' backends, by where a tensor is; None for Ray's own choice.

    NCCL sums what is on a GPU. Gloo carries what is on the host, such as agreements and errors, and
    so never waits behind kernels. A group for one kind of tensor only would refuse the other.
    """
    return "cpu:gloo,cuda:nccl" if gpus_per_worker(scaling) else None


def require_gpus(scaling: ray.train.ScalingConfig | None) -> None:
    """Refuse a run whose workers need GPUs that no node has or may get.
    Before Ray has started, nothing is known, and nothing refused."""
    each = gpus_per_worker(scaling)
    if not each or not ray.is_initialized():
        return
    nodes = nodes_in_time(
        lambda nodes: any(node.get("GPU", 0.0) >= each for node in nodes), labels=labels_of(scaling)
    )
    has = [node.get("GPU", 0.0) for node in nodes]
    if max(has, default=0.0) >= each or autoscales():
        return
    said = "none" if not any(has) else f"{max(has):g} on a node at most"
    raise UsageError(
        f"a worker asks for {each:g} of a GPU, the cluster has {said}, and no autoscaler that "
        "brings more"
        if each < 1
        else f"a worker asks for {each:g} GPU{'s' if each > 1 else ''}, the cluster has {said}, "
        "and no autoscaler that brings more",
        where="resources.gpus_per_worker",
        do="Leave it out to train on CPUs, or join a cluster with GPUs: RAY_ADDRESS, or "
        "`govray train --address`",
    )
