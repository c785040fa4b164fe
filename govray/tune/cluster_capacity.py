"""How many trials start at once, and which wait for room.

Ray places trials. All workers of a trial are one placement group, which Ray gives whole or not at
all. So no trial holds some of its workers while it waits for others, and any number may wait. What
waits is demand that an autoscaler sees, from no node on. A trial that waits has a process of its
own, though, and its hyperparameters are drawn. So no more start than find room, or than may soon.

On a cluster that no autoscaler serves, a trial that fits no node is refused once all have joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ray.util import placement_group_table

from govray.errors import UsageError
from govray.governance.submission.pool_labels import node_labels
from govray.train.driver.gang import need as words
from govray.train.driver.gang import places
from govray.train.driver.ray_cluster import autoscales, nodes_in_time
from govray.train.experiment.resources import Resources
from govray.tune.search_config import SearchFile

TRIAL_CPUS = 0.01
"""CPUs of a trial's own process, besides its workers. Ray refuses 0."""

ASKING = 8
"""Trials that start, on a cluster with an autoscaler, however little room there is yet: the
autoscaler brings room for those that wait. ``max_concurrent_trials`` says otherwise."""


def concurrent_trials(file: SearchFile) -> int:
    """How many trials may have started and not ended, by the nodes of this moment. Raises
    `UsageError`: the cluster has no room for one, and no autoscaler."""
    resources = file.experiment.resources
    nodes = nodes_in_time(
        lambda nodes: trials_that_fit(nodes, resources, most=1) > 0,
        labels=node_labels(resources.labels),
    )
    return trials_at_once(file, nodes, scales=autoscales())


def trials_at_once(file: SearchFile, nodes: Iterable[Mapping[str, float]], *, scales: bool) -> int:
    """As `concurrent_trials`, for given nodes. ``nodes``: of each node, what Ray may use: resource
    name to amount."""
    search = file.search
    fit = trials_that_fit(nodes, file.experiment.resources, search.max_trials)
    if scales:
        return min(file.most_at_once or max(fit, ASKING), search.max_trials)
    if fit == 0:
        raise UsageError(
            "the cluster has no room for the workers of one trial, and no autoscaler that brings "
            "more nodes",
            where="resources",
            do="Use fewer workers or less of a CPU for each; a trial itself takes "
            f"{TRIAL_CPUS} CPUs beside them",
        )
    return min(fit, file.most_at_once or fit)


def trials_that_fit(
    nodes: Iterable[Mapping[str, float]], resources: Resources, most: int = 10_000
) -> int:
    """How many trials can run at once, each with all its workers.

    Args:
        nodes: Of each node, what Ray may use: resource name to amount.
        resources: Of one trial; of an elastic one, with its fewest workers.
    """
    nodes = list(nodes)
    trials = 0
    while trials < most and _fits(nodes, resources, trials + 1):
        trials += 1
    return trials


def _fits(nodes: Iterable[Mapping[str, float]], resources: Resources, n: int) -> bool:
    # Ray may place the trials' own processes on any of the nodes.
    left = [{**node, "CPU": node.get("CPU", 0.0) - n * TRIAL_CPUS} for node in nodes]
    least, placement = resources.least, resources.placement.upper()
    room = places(left, resources.worker, placement=placement, least=least, gangs=n)
    return room >= n * least


def waiting_trials(resources: Resources) -> int:
    """How many trials wait for room at this moment, for their workers or for their own process."""
    groups: Any = placement_group_table()
    return count_waiting(groups.values(), resources)


def count_waiting(groups: Iterable[Mapping[str, Any]], resources: Resources) -> int:
    """As `waiting_trials`, for the placement groups that Ray lists."""
    worker = resources.worker
    count = 0
    for group in groups:
        bundles = list(group["bundles"].values())
        own = bundles == [{"CPU": TRIAL_CPUS}]
        count += group["state"] == "PENDING" and (own or all(each == worker for each in bundles))
    return count


def need(resources: Resources) -> str:
    gang = [resources.worker] * resources.least
    return words(gang, node_labels(resources.labels), resources.placement.upper())
