"""How many trials a cluster has room for, each with all its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import ray

from govray.errors import UsageError
from govray.train.inputs.experiment_config import Resources
from govray.tune.search_config import SearchFile

TRIAL_CPUS = 0.01
"""CPUs of a trial's own process, besides its workers. Ray refuses 0."""


def concurrent_trials(file: SearchFile) -> int:
    """How many trials run at once.

    Raises:
        UsageError: The cluster has no room for one.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fit = trials_that_fit(nodes, file.experiment.resources)
    if fit == 0:
        raise UsageError(
            "the cluster has no room for the workers of one trial",
            where="resources",
            do="Use fewer workers or less of a CPU for each; a trial itself takes "
            f"{TRIAL_CPUS} CPUs beside them",
        )
    return min(fit, file.search.max_concurrent_trials or fit)


def trials_that_fit(nodes: Iterable[Mapping[str, float]], resources: Resources) -> int:
    """How many trials can run at once, each with all its workers.

    A trial holds its workers until it ends. If more trials started, each could get some of its
    workers and wait for ever for the others.

    Args:
        nodes: Of each node, what Ray may use: resource name to amount.
        resources: Of one trial; of an elastic one, with its fewest workers.
    """
    workers = resources.num_workers
    least = workers if isinstance(workers, int) else workers[0]
    trials = 0
    while _fits(nodes, resources, least, trials + 1):
        trials += 1
    return trials


def _fits(nodes: Iterable[Mapping[str, float]], resources: Resources, least: int, n: int) -> bool:
    places = 0
    for node in nodes:
        # Ray may place the trials' own processes on any of the nodes.
        cpus = node.get("CPU", 0.0) - n * TRIAL_CPUS
        fit = int(cpus / resources.cpus_per_worker + 1e-6)
        if resources.gpus_per_worker:
            fit = min(fit, int(node.get("GPU", 0.0) / resources.gpus_per_worker + 1e-6))
        places += max(fit, 0)
    return places >= n * least
