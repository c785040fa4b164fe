"""What a trial reports: a line at each commit, each step once; and how many trials fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from govray.errors import UsageError
from govray.governance.policy.policy_yaml import read_policy
from govray.train.checkpoint import commit_folder
from govray.train.checkpoint.storage import folder_name
from govray.train.experiment.resources import Resources
from govray.train.state.snapshot import committed_folders
from govray.train.worker.run import COMMIT_LOSS
from govray.tune.cluster_capacity import TRIAL_CPUS, trials_that_fit
from govray.tune.search import check_limit
from govray.tune.search_config import MemorizationLimit
from govray.tune.trial_reports import (
    FILE,
    Measurement,
    Reporter,
    put_unreported_aside,
    read_reports,
)


def said(step: int, commit: float | None = None, **more: float | None) -> list[dict[str, object]]:
    own: dict[str, object] = {"step": float(step - 1), "loss": 9.0, COMMIT_LOSS: commit} | more
    return [own, {"step": float(step - 1), "loss": 9.0}]


def test_a_report_is_the_mean_loss_at_a_commit_and_the_last_memorization(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "loss")
    reporter.after_report(None, [{"step": 2.0, "loss": 9.0, "memorization": 0.5}], None)
    for words in (said(4, 3.5), said(8, 2.5, memorization=0.75), said(12, None)):
        reporter.after_report(None, words, None)
    *known, last = read_reports(tmp_path)
    assert known == [
        Measurement(step=4, value=3.5, memorization=0.5),
        Measurement(step=8, value=2.5, memorization=0.75),
    ]
    assert (last.step, last.memorization) == (12, 0.75)
    assert math.isnan(last.value)


def test_a_step_counts_once_and_a_cut_line_not_at_all(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "loss")
    reporter.after_report(None, said(4, 3.5), None)
    reporter.after_report(None, said(8, 2.5), None)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-4])
    assert [each.step for each in read_reports(tmp_path)] == [4]
    again = Reporter(tmp_path, "loss")
    again.after_report(None, said(4, 3.25), None)
    again.after_report(None, said(8, 2.5), None)
    assert [(each.step, each.value) for each in read_reports(tmp_path)] == [(4, 3.5), (8, 2.5)]


@pytest.mark.parametrize(
    ("nodes", "workers", "cpus", "gpus", "trials"),
    [
        ([2], 1, 0.5, 0, 3),  # a trial's own process takes a little, so four would not fit
        ([2], 2, 0.5, 0, 1),
        ([2], 1, 1, 0, 1),
        ([2], 2, 1, 0, 0),
        ([4, 4], 3, 1, 0, 2),
        ([4, 4], [2, 8], 1, 0, 3),
        ([8, 8], 2, 1, 1, 1),
        ([], 1, 1, 0, 0),
    ],
)
def test_as_many_trials_run_as_find_all_their_workers(
    nodes: list[float], workers: object, cpus: float, gpus: float, trials: int
) -> None:
    resources = Resources.model_validate(
        {"num_workers": workers, "cpus_per_worker": cpus, "gpus_per_worker": gpus}
    )
    cluster = [{"CPU": float(node), "GPU": 1.0} for node in nodes]
    assert trials_that_fit(cluster, resources) == trials
    used = trials * (TRIAL_CPUS + cpus * (workers if isinstance(workers, int) else workers[0]))
    assert used <= sum(nodes)


POLICY = """
schema: govray.dev/depth-policy/v1
name: monitored
version: 1
valid: {from: 2020-01-01, until: 2099-01-01}
on_expiry: stop
profiles:
  everything: {layers: all}
rules:
  - {name: open, match: {license_category: [permissive]}, profile: everything}
"""


def test_a_limit_is_of_what_the_policys_monitor_measures(caplog: pytest.LogCaptureFixture) -> None:
    unmonitored = read_policy(POLICY)
    monitored = unmonitored.model_copy(update={"memorization": Monitored("composite")})
    limit = MemorizationLimit(statistic="composite", unit="log odds", tau=4.0)
    check_limit(limit, monitored, 10)
    check_limit(None, monitored, 1)
    assert not caplog.records
    check_limit(limit, unmonitored, 1)
    assert "every trial counts as above the limit" in caplog.text
    other = limit.model_copy(update={"statistic": "surprise"})
    with pytest.raises(UsageError, match="measures composite, not surprise"):
        check_limit(other, monitored, 10)
    check_limit(other.model_copy(update={"tau": math.inf}), monitored, 1)
    with pytest.raises(UsageError, match="compared at step 9"):
        check_limit(limit, monitored, 9)


@dataclass(frozen=True)
class Monitored:
    statistic: str
    every: int = 5
    turns: int = 2


def commits(run: Path) -> list[int]:
    return [step for step, _ in committed_folders(run)]


def test_a_commit_whose_report_a_kill_took_along_is_put_aside(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        commit_folder.commit(tmp_path / folder_name(step), {"state.json": b"{}"})
    reporter = Reporter(tmp_path, "loss")
    for step in (4, 8):
        reporter.after_report(None, said(step, 3.5), None)
    put_unreported_aside(tmp_path)
    assert commits(tmp_path) == [8, 4]
    # The run goes on at step 8, commits and reports once more: now nothing is left out.
    commit_folder.commit(tmp_path / folder_name(12), {"state.json": b"{}"})
    reporter.after_report(None, said(12, 2.5), None)
    put_unreported_aside(tmp_path)
    assert commits(tmp_path) == [12, 8, 4]
    assert [each.step for each in read_reports(tmp_path)] == [4, 8, 12]
