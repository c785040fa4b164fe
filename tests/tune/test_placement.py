"""Which trials start, which wait for room, what is said of it, and on which cluster."""

from __future__ import annotations

from typing import Any

import pytest

from govray.errors import UsageError
from govray.train.driver import ray_cluster
from govray.train.driver.waiting_line import AGAIN_S, FIRST_S, GAP_S, WaitingLine
from govray.train.experiment.resources import Resources
from govray.tune.cluster_capacity import (
    ASKING,
    TRIAL_CPUS,
    autoscales,
    count_waiting,
    need,
    trials_at_once,
)
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


@pytest.mark.parametrize(
    ("stored", "scales"),
    [
        ({}, False),
        ({"__autoscaler_v2_enabled": b"0"}, False),
        ({"__autoscaler_v2_enabled": b"1"}, True),
        ({"__autoscaling_status": b'{"autoscaler_report": null}'}, False),
        ({"__autoscaling_status": b'{"autoscaler_report": {"active_nodes": {"TYPE": 1}}}'}, False),
        ({"__autoscaling_status": b'{"autoscaler_report": {"active_nodes": {"head": 1}}}'}, True),
        ({"__autoscaling_status": b'{"autoscaler_report": {"idle_nodes": {"cpu": 1}}}'}, True),
    ],
)
def test_an_autoscaler_is_told_from_rays_mere_monitor(
    stored: dict[str, bytes], scales: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands there under Ray 2.60; TYPE is how the monitor names a node's type."""
    known = {name: value.replace(b"TYPE", b"node_" + b"0a" * 28) for name, value in stored.items()}
    monkeypatch.setattr(
        ray_cluster, "_internal_kv_get", lambda name, namespace=None: known.get(name)
    )
    assert autoscales() is scales


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


def test_a_wait_is_told_once_and_again_when_it_goes_on() -> None:
    found = said(*((float(now), 2) for now in range(0, 4000, 2)))
    first, again, third, fourth = found
    assert FIRST_S <= first < FIRST_S + 2
    assert found[first] == "2 trials wait for room: each needs 2 workers"
    assert (again, third, fourth) == (AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S)
    assert "for 10 minutes" in found[again]
    assert "`ray status`" in found[again]


def test_a_moments_wait_is_not_worth_a_word() -> None:
    assert said((0, 1), (2, 1), (4, 0), (4 + GAP_S + 1, 0), (30, 1), (32, 1)) == {}
    # Ray asks anew for what is not there yet: that is one wait.
    assert list(said((0, 1), (4, 0), (8, 1))) == [8]
