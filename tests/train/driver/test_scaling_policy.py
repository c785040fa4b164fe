"""How many workers fit, and the private parts of Ray that the policy stands on."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.scaling_policy.scaling_policy import (
    NoopDecision,
    ResizeDecision,
)

from govray.data.prepared.partition import READ_CPUS
from govray.train.driver import scaling_policy
from govray.train.driver.ray_cluster import START_TIMEOUT_S
from govray.train.driver.scaling_policy import PATIENCE_S, Elastic, workers_beside_a_reader
from govray.train.experiment.resources import Resources
from govray.train.run_folder import events
from govray.train.run_folder.clock import now
from govray.train.run_folder.requests import COMMITTED, RESIZE, answer
from tests.support.page_commands import part
from tests.support.tree import ROOT


@pytest.mark.parametrize(
    ("nodes", "worker", "expected"),
    [
        ([{"CPU": 2}], {"CPU": 0.5}, 3),
        ([{"CPU": 1}, {"CPU": 1}], {"CPU": 1}, 1),
        ([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}], {"CPU": 0.5}, 5),
        ([{"CPU": 1.5}, {"CPU": 1}], {"CPU": 1}, 2),  # the half is enough for a reader
        ([{"CPU": 16, "GPU": 4}, {"CPU": 16, "GPU": 4}], {"CPU": 2, "GPU": 1}, 8),
        ([{"CPU": 4, "GPU": 4}], {"CPU": 1, "GPU": 1}, 3),
        ([{"CPU": 0.25}], {"CPU": 0.25}, 1),  # nowhere is room for a reader: not ours to solve
        ([{}], {"CPU": 1}, 0),
        ([], {"CPU": 1}, 0),
    ],
)
def test_one_reader_finds_room_beside_the_workers(
    nodes: list[dict[str, float]], worker: dict[str, float], expected: int
) -> None:
    assert workers_beside_a_reader(nodes, worker) == expected


@given(cpus=st.lists(st.integers(0, 32), max_size=6), need=st.integers(1, 8))
def test_no_more_than_fit_and_no_fewer_than_without_one_node_s_share(
    cpus: list[int], need: int
) -> None:
    nodes = [{"CPU": each / 4} for each in cpus]
    found = workers_beside_a_reader(nodes, {"CPU": need / 4})
    alone = sum(each // need for each in cpus)
    assert alone - max(1, -(-int(READ_CPUS * 4) // need)) <= found <= alone
    if any(each >= 4 * READ_CPUS for each in cpus):
        spare = [each - 4 * READ_CPUS for each in cpus if each >= 4 * READ_CPUS]
        assert found == max(
            sum(each // need for each in cpus) - (room + 2) // need + room // need for room in spare
        )


def test_the_page_and_the_cluster_file_say_what_the_code_does() -> None:
    root = ROOT
    page = part("docs/training-modes.md", "Elastic runs")
    [resources] = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    assert Resources(**resources["resources"]).num_workers == (1, 3)
    assert ScalingConfig(num_workers=(1, 3)).elastic_resize_monitor_interval_s == 60
    assert workers_beside_a_reader([{"CPU": 8}], {"CPU": 2}) == 3
    assert f"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S={START_TIMEOUT_S}" in page
    assert f"({PATIENCE_S:.0f} s at most)" in page
    [settings] = re.findall(r"^RAY_health_check.*$", page, re.M)
    assert settings in (root / "cluster.yaml").read_text()
    server = (Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server").read_bytes()
    for setting in settings.split():
        assert setting.partition("=")[0].removeprefix("RAY_").encode() in server


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Job → whether the cluster counts it as ended; the process's own is ``01``."""
    known = {"01": False, "02": True}
    monkeypatch.setattr(
        scaling_policy.global_state,
        "job_table",
        lambda: [{"JobID": job, "IsDead": ended} for job, ended in known.items()],
    )
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "01")
    )
    return known


class Policy(Elastic):
    """Elastic, of a cluster that has room for ``room`` workers."""

    room = 3

    def _maybe_send_resource_request(self) -> None: ...

    def _get_reserved_resources(self) -> Any:
        return {}

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        return self.room


def test_healthy_workers_are_exchanged_once_they_have_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(
        ScalingConfig(num_workers=(1, 3), elastic_resize_monitor_interval_s=0), tmp_path
    )
    running = SimpleNamespace(num_workers=1, start_time=0.0)

    def decide() -> object:
        return policy.make_decision_for_running_worker_group(running, None)

    assert not RESIZE.made(tmp_path)
    assert isinstance(decide(), NoopDecision)
    assert RESIZE.made(tmp_path)
    [wanted] = events.read(tmp_path)
    assert isinstance(wanted, events.ResizeWanted)
    assert (wanted.before, wanted.after) == (1, 3)
    assert isinstance(decide(), NoopDecision)  # no answer yet
    assert len(events.read(tmp_path)) == 1
    answer(tmp_path)
    assert not RESIZE.made(tmp_path)
    decision = decide()
    assert isinstance(decision, ResizeDecision)
    assert decision.num_workers == 3
    assert not COMMITTED.made(tmp_path)
    # A group that fails while its commit is awaited is started as always, and not asked again.
    assert isinstance(decide(), NoopDecision)
    monkeypatch.setattr(scaling_policy, "nodes_alive", list)
    assert isinstance(policy.make_decision_for_non_running_worker_group(), ResizeDecision)
    assert not RESIZE.made(tmp_path)
    policy.room = 1
    assert isinstance(decide(), NoopDecision)
    assert not RESIZE.made(tmp_path)


class OnTwoNodes(Elastic):
    """Elastic, of a cluster whose nodes a and b hold two workers and one."""

    def _maybe_send_resource_request(self) -> None: ...

    def _get_reserved_resources(self) -> Any:
        return {"a": {"CPU": 2.5}, "b": {"CPU": 1.5}}


def test_only_the_next_attempt_counts_on_no_excluded_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"NodeID": "a", "Resources": {"CPU": 2.5}}, {"NodeID": "b", "Resources": {"CPU": 1.5}}]
    monkeypatch.setattr(scaling_policy, "nodes_alive", lambda: nodes)
    monkeypatch.setattr(scaling_policy, "_answers", lambda node: True)
    scaling = ScalingConfig(
        num_workers=(1, 3),
        resources_per_worker={"CPU": 1.0},
        elastic_resize_monitor_interval_s=0,
    )
    policy = OnTwoNodes(scaling, tmp_path)

    def started() -> int:
        decision = policy.make_decision_for_non_running_worker_group()
        assert isinstance(decision, ResizeDecision)
        return decision.num_workers

    assert started() == 3
    matched = events.LogMatched(
        at=now(), log="rank-0-1.log", pattern="disk", action="exclude_node", line="disk", node="a"
    )
    events.append(tmp_path, matched)
    running = SimpleNamespace(num_workers=3, start_time=0.0)
    decision = policy.make_decision_for_running_worker_group(running, None)
    assert isinstance(decision, NoopDecision)
    assert not RESIZE.made(tmp_path)
    assert started() == 1


def test_no_worker_is_started_while_a_node_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(ScalingConfig(num_workers=(1, 3)), tmp_path)
    clock = [100.0]
    monkeypatch.setattr(scaling_policy, "time_monotonic", lambda: clock[0])
    monkeypatch.setattr(scaling_policy, "nodes_alive", lambda: [{}])
    monkeypatch.setattr(scaling_policy, "_answers", lambda node: False)
    assert isinstance(policy.make_decision_for_non_running_worker_group(), NoopDecision)
    clock[0] += PATIENCE_S + 1
    assert isinstance(policy.make_decision_for_non_running_worker_group(), ResizeDecision)
