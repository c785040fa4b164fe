"""Which trials start, which wait for room, what is said of it, and on which cluster."""

from __future__ import annotations

from typing import Any

import pytest

from govray.errors import UsageError
from govray.train.driver.waiting_line import WaitingLine
from govray.train.experiment.resources import Resources
from govray.tune.cluster_capacity import ASKING, TRIAL_CPUS, count_waiting, need, trials_at_once
from govray.tune.search_config import SearchFile, parse_search
from tests.support.search_files import EXPERIMENT, SEARCH

TWO: dict[str, Any] = {"num_workers": 2, "cpus_per_worker": 1}


def file(**search: Any) -> SearchFile:
    return parse_search(EXPERIMENT | {"resources": TWO, "search": SEARCH | search}, where="x")


def nodes(*cpus: float) -> list[dict[str, float]]:
    return [{"CPU": each} for each in cpus]


@pytest.mark.parametrize(
    ("cpus", "scales", "search", "trials"),
    [
        ((8.0,), False, {}, 3),
        ((8.0,), False, {"max_concurrent_trials": 2}, 2),
        ((8.0,), False, {"max_concurrent_trials": 9}, 3),
        ((80.0,), False, {}, 10),  # as many as there are
        ((), True, {}, ASKING),
        ((0.0,), True, {"max_trials": 5}, 5),
        ((0.0,), True, {"max_concurrent_trials": 9}, 9),
        ((80.0,), True, {"max_trials": 100}, 39),
        ((80.0,), True, {"max_concurrent_trials": 2}, 2),
    ],
)
def test_trials_start_for_which_there_is_room_or_may_be(
    cpus: tuple[float, ...], scales: bool, search: dict[str, Any], trials: int
) -> None:
    assert trials_at_once(file(**search), nodes(*cpus), scales=scales) == trials


def test_what_fits_nowhere_is_refused_where_nobody_brings_nodes() -> None:
    for cpus in ((), (0.0, 0.5), (2.0,)):
        with pytest.raises(UsageError, match="no room for the workers of one trial"):
            trials_at_once(file(), nodes(*cpus), scales=False)
    assert trials_at_once(file(), nodes(2.1), scales=False) == 1


def group(state: str, *bundles: dict[str, float]) -> dict[str, Any]:
    return {"state": state, "bundles": dict(enumerate(bundles))}


def test_a_trial_waits_for_its_workers_or_for_its_own_process() -> None:
    worker = {"CPU": 1.0}
    groups = [
        group("PENDING", worker, worker),
        group("PENDING", {"CPU": TRIAL_CPUS}),
        group("CREATED", worker, worker),
        group("PENDING", {"CPU": 4.0}),  # of somebody else
        group("REMOVED", worker, worker),
    ]
    resources = Resources.model_validate(TWO)
    assert count_waiting(groups, resources) == 2
    assert need(resources) == "2 workers with 1 CPU each"
    gpus = Resources.model_validate(
        {"num_workers": [1, 4], "cpus_per_worker": 2, "gpus_per_worker": 1}
    )
    assert count_waiting([group("PENDING", {"CPU": 2.0, "GPU": 1.0})], gpus) == 1
    assert need(gpus) == "1 worker with 2 CPU and 1 GPU"


def said(*looks: tuple[float, int]) -> dict[float, str]:
    """What is said at looks of (time, trials that wait), by time."""
    line = WaitingLine("2 workers")
    told = ((now, line.look(waiting, now)) for now, waiting in looks)
    return {now: words for now, words in told if words}
