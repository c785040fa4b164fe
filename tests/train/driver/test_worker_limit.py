"""A queue's limit on a run's workers: they commit, fewer start, and only then it is answered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.train import ScalingConfig
from ray.train.v2._internal.execution.scaling_policy.scaling_policy import (
    NoopDecision,
    ResizeDecision,
)

from govray.governance.submission.worker_cap import ANSWER, REQUEST, WorkerCap, read_cap, write_cap
from govray.train.driver import scaling_policy
from govray.train.driver.scaling_policy import Elastic, WorkerLimit
from govray.train.run_folder import events
from govray.train.run_folder.requests import RESIZE, answer


class Policy(Elastic):
    """Elastic, of a cluster that has room for ``room`` workers."""

    room = 4
    asked: int | None = None

    def _maybe_send_resource_request(self) -> None:
        self.asked = self._get_num_workers_for_resource_request()

    def _get_reserved_resources(self) -> Any:
        return {}

    def _room(self, reserved_resources: Any) -> int:
        return min(self.room, 4)


class Run:
    """A run of one to four workers, and its policy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0
        self.again()

    def again(self) -> None:
        """Another controller: the one before is gone."""
        scaling = ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=0)
        self.policy = Policy(scaling, self.folder)

    def limit(self, most: int) -> WorkerCap:
        self.number += 1
        cap = WorkerCap(number=self.number, most=most)
        write_cap(self.folder, REQUEST, cap)
        return cap

    def decided(self, workers: int) -> int | None:
        """The number of workers that follows so many; None for no change."""
        running = SimpleNamespace(num_workers=workers, start_time=0.0)
        return self._number(self.policy.make_decision_for_running_worker_group(running, None))

    def started(self) -> int | None:
        """The number of workers that start where none run."""
        return self._number(self.policy.make_decision_for_non_running_worker_group())

    @property
    def answer(self) -> WorkerCap | None:
        return read_cap(self.folder, ANSWER)

    @staticmethod
    def _number(decision: object) -> int | None:
        if isinstance(decision, ResizeDecision):
            return decision.num_workers
        assert isinstance(decision, NoopDecision)
        return None


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    node = {
        "NodeID": "n",
        "Resources": {"CPU": 9.0},
        "NodeManagerAddress": "",
        "NodeManagerPort": 0,
    }
    monkeypatch.setattr(scaling_policy, "nodes_alive", lambda: [node])
    monkeypatch.setattr(scaling_policy, "_answers", lambda node: True)
    monkeypatch.setattr(scaling_policy, "_job_ended", lambda: False)
    return Run(tmp_path)


def test_workers_commit_fewer_start_and_then_the_queue_is_answered(run: Run) -> None:
    assert run.decided(4) is None
    cap = run.limit(2)
    assert run.decided(4) is None
    assert RESIZE.made(run.folder)
    assert run.answer is None
    answer(run.folder)
    assert run.decided(4) == 2
    assert run.answer is None  # they have committed, and still hold what they have
    assert run.decided(2) is None
    assert (run.answer, run.policy.asked) == (cap, 2)
    assert not RESIZE.made(run.folder)
    # Lifted, it grows as it does where a node comes.
    lifted = run.limit(4)
    assert run.decided(2) is None
    assert RESIZE.made(run.folder)
    assert run.answer == lifted
    answer(run.folder)
    assert run.decided(2) == 4
    said = [each.text for each in events.read(run.folder)]
    assert said == [
        "the queue allows 2 workers at most",
        "room for 2 workers instead of 4: commit, then resize",
        "the queue allows 4 workers at most",
        "room for 4 workers instead of 2: commit, then resize",
    ]


def test_every_start_obeys_whoever_decides(run: Run) -> None:
    assert run.started() == 4  # the control: without a limit all of them
    run.limit(3)
    assert run.started() == 3
    assert run.answer is None  # they have not started
    run.again()
    assert run.started() == 3
    assert run.decided(3) is None
    assert run.answer == WorkerCap(number=1, most=3)
    (run.folder / ANSWER).unlink()
    run.again()
    assert run.decided(3) is None
    assert run.answer == WorkerCap(number=1, most=3)


def test_no_limit_goes_below_the_least_and_such_a_one_is_never_answered(run: Run) -> None:
    scaling = ScalingConfig(num_workers=(2, 4), elastic_resize_monitor_interval_s=0)
    run.policy = Policy(scaling, run.folder)
    run.limit(1)
    assert run.started() == 2
    assert run.decided(2) is None
    assert run.answer is None


@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(1, 12), max_size=4))
def test_between_its_own_bounds_the_latest_limit_holds(
    least: int, more: int, limits: list[int]
) -> None:
    limit = WorkerLimit(Path("/nowhere"))
    assert not limit.look()
    for number, each in enumerate(limits, 1):
        limit._cap = WorkerCap(number=number, most=each)
    found = limit.most(least, least + more)
    assert least <= found <= least + more
    if limits:
        assert found == sorted((least, limits[-1], least + more))[1]
    else:
        assert found == least + more
