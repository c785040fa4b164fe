"""What a trial reports: a line at each commit, each step once; and how many trials fit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from govray.errors import Malformed, UsageError
from govray.train.config import Resources
from govray.train.worker import COMMIT_LOSS
from govray.tune.reports import FILE, Measurement, Reporter, read_reports
from govray.tune.search import TRIAL_CPUS, room


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
        Measurement(step=4, loss=3.5, memorization=0.5),
        Measurement(step=8, loss=2.5, memorization=0.75),
    ]
    assert (last.step, last.memorization) == (12, 0.75)
    assert math.isnan(last.loss)


def test_the_metric_is_the_loops_own(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "val_loss")
    reporter.after_report(None, said(4, 3.5, val_loss=1.5), None)
    assert [each.loss for each in read_reports(tmp_path)] == [1.5]
    with pytest.raises(UsageError, match="reports no 'val_loss'"):
        reporter.after_report(None, said(8, 3.5), None)


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
    assert [(each.step, each.loss) for each in read_reports(tmp_path)] == [(4, 3.5), (8, 2.5)]


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"step":"x"}\n'])
def test_what_is_no_report_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / FILE).write_bytes(line)
    with pytest.raises(Malformed):
        read_reports(tmp_path)


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
    assert room(cluster, resources) == trials
    used = trials * (TRIAL_CPUS + cpus * (workers if isinstance(workers, int) else workers[0]))
    assert used <= sum(nodes)
