"""What a run prints stays in its folder, and a line of it may stop or flag the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from govray import cli
from govray.errors import InfrastructureFailed, Stopped
from govray.platform.store import run_logs
from govray.train.driver import attempts, failures, progress
from govray.train.driver.trainer import GovernedTrainer
from govray.train.experiment.sections import LogPolicy
from govray.train.inputs import run_listing
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.run_folder import event_rows, events, run_lock
from govray.train.run_folder.clock import now
from govray.train.run_folder.requests import STOP
from tests.support.committing import an_experiment
from tests.support.deployment import Deployment
from tests.support.forked_workers import Forked
from tests.support.ray_nodes import SETTINGS, ray_nodes


def policy(pattern: str, action: Any = "flag") -> LogPolicy:
    return LogPolicy(pattern=pattern, action=action)


def test_each_policy_follows_once_from_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = SimpleNamespace(get_node_id=lambda: "f00d")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    disk = policy("disk", "exclude_node")
    policies = (policy("NaN"), policy("memory", "stop"), policy("never"), disk)
    look = progress.watch(tmp_path, "rank-0-1.log", policies)
    assert look is not None
    for line in ("fine", "loss NaN", "loss NaN"):
        look(line)
    assert not STOP.made(tmp_path)
    look("out of memory")
    look("out of memory")
    assert STOP.made(tmp_path)
    found = [each for each in events.read(tmp_path) if isinstance(each, events.LogMatched)]
    assert [(each.pattern, each.action) for each in found] == [("NaN", "flag"), ("memory", "stop")]
    decided = event_rows.decisions(events.read(tmp_path))
    assert [each.kind for each in decided] == ["log", "stop", "log"]
    assert events.excluded_nodes(tmp_path) == frozenset()
    look("disk 3 is read-only")
    assert events.excluded_nodes(tmp_path) == {"f00d"}
    assert progress.watch(tmp_path, "rank-0-1.log", ()) is None


@pytest.mark.parametrize("action", ["no_retry", "flag"])
@pytest.mark.parametrize("error", [ValueError("no such column"), InfrastructureFailed("a node")])
def test_a_line_of_the_attempt_that_failed_ends_its_retries(
    tmp_path: Path, action: str, error: Exception
) -> None:
    driver = run_lock.take_over(tmp_path)

    def begin() -> str:
        run_lock.begin_attempt(tmp_path, driver)
        return f"rank-0-{run_lock.last_attempt(tmp_path)}.log"

    def restarts() -> bool:
        failure = failures.classify({0: error}, where="run r")
        decision = attempts._note(tmp_path, failure, max_restarts=9)
        *_, last = events.read(tmp_path)
        assert isinstance(last, events.Failed)
        assert last.decision == ("restart" if decision.restart else "stop")
        if not decision.restart:
            said = str(decision.error)
            assert "not tried again, since rank-0-2.log has 'no such*column'" in said
            assert decision.error.exit_code == 1  # so the queue doesn't either
        return decision.restart

    begin()
    assert restarts()  # the control: nothing has such a line
    look = progress.watch(tmp_path, begin(), [policy("no such*column", action)])
    assert look is not None
    look("ValueError: no such column")
    assert restarts() is (action == "flag")
    events.append(tmp_path, events.DriverStarted(at=now(), driver=2, host="h", pid=1))
    assert restarts(), "somebody has resumed the run, and its attempt has not begun"
    begin()
    assert restarts()


def test_the_error_that_ends_a_worker_is_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").write_text("a line\n")
    monkeypatch.setattr(progress, "outputs", lambda **_: [(str(tmp_path / "out"), 0)])
    experiment = an_experiment()
    order: Any = SimpleNamespace(folder=str(tmp_path), experiment=experiment, driver=3)
    with pytest.raises(ZeroDivisionError), progress.of_worker(order, 1, 2):
        print(1 / 0)
    with progress.of_driver(order):
        pass
    part = run_logs.read(str(tmp_path), "rank-1-2.log", start=0, most=100)
    assert part is not None
    texts = [line.text for line in part.lines]
    assert (texts[-1], "a line" in texts) == ("ZeroDivisionError: division by zero", True)
    assert [each.name for each in run_logs.listed(str(tmp_path))] == [
        "driver-3.log",
        "rank-1-2.log",
    ]


@pytest.mark.story
@pytest.mark.usefixtures("cluster")
def test_a_run_keeps_what_its_workers_print_and_stops_at_a_line(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    text = deployment.experiment(
        name="printing",
        entrypoint="tests.support.printing_gpt:GPT",
        log_policies=[{"pattern": "CUDA*out of memory", "action": "stop"}],
    )
    with pytest.raises(Stopped):
        GovernedTrainer(parse_experiment(text, where="test")).train()
    [run] = (deployment.folder / "runs").glob("printing-*")
    found = run_listing.inspect(run)
    assert found.state == "stopped"
    matched = [each for each in events.read(run) if isinstance(each, events.LogMatched)]
    assert {each.log for each in matched} == {"rank-0-1.log", "rank-1-1.log"}
    for each in run_listing.workers(run):
        if each.log is not None:
            Path(each.log).unlink()  # the session is gone
    capsys.readouterr()
    assert cli.main(["runs", "logs", str(run), "--lines", "100", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in shown] == ["rank-0-1.log", "rank-1-1.log"]
    for each in shown:
        assert {f"call {number}" for number in range(1, 6)} <= set(each["tail"])
        assert "CUDA error: out of memory, token [cut]" in each["tail"]


@pytest.mark.story
def test_attempts_leave_the_nodes_that_a_policy_excluded(tmp_path: Path, forked: Forked) -> None:
    with ray_nodes(forked, workers=2, cpus=3) as nodes_up:
        driver = subprocess.run(
            [sys.executable, "-m", "tests.support.failing_disk", str(tmp_path)],
            env=os.environ | SETTINGS | {"RAY_ADDRESS": nodes_up.address},
            timeout=400,
            capture_output=True,
            text=True,
            check=False,
        )
    assert "beside the nodes that log policies excluded is room for 0" in driver.stderr
    [run] = (tmp_path / "runs").glob("failing-*")
    log = events.read(run)
    nodes = [each.node for each in log if isinstance(each, events.WorkerStarted)]
    assert len(nodes) == 2
    assert {*nodes} == events.excluded_nodes(run)
    failed = [each for each in log if isinstance(each, events.Failed)]
    assert [each.decision for each in failed] == ["restart", "stop"]
    assert all(str(node) in failed[1].what for node in nodes)
    assert run_listing.inspect(run).state == "failed"
