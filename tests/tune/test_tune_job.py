"""What `jobs/tune.py` says at its end; that a search runs is shown in test_search_on_cluster.py."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from govray.train.driver import ray_cluster
from govray.tune import search
from govray.tune.objective import Conclusion
from govray.tune.search import SearchOutcome
from tests.support.tree import ROOT

JOBS = ROOT / "jobs"


def told(
    outcome: SearchOutcome | Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[int, str, str]:
    """Exit code and output of the job, whose search ends so."""

    def run(*args: object, **kwargs: object) -> SearchOutcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(ray_cluster, "start_ray", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["tune.py", "--config", str(JOBS / "tune.yaml")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / "tune.py"), run_name="__main__")
    return ended.value.code, *capsys.readouterr()


def outcome(best: str | None, lowest: str, why: str | None) -> SearchOutcome:
    models = {name: Path("runs/s") / name / "model" for name in ("a", "b")}
    conclusion = Conclusion(best, ("a", "b"), lowest, why)
    return SearchOutcome(folder=Path("runs/s"), standings={}, conclusion=conclusion, models=models)


def test_it_names_the_best_trial_and_why_the_lowest_loss_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told(outcome("a", "b", "it memorizes"), monkeypatch, capsys)
    assert code == 0
    assert out.splitlines() == [
        "search runs/s",
        "best   a",
        "model  runs/s/a/model",
        "The lowest loss is b's, which is not best: it memorizes",
    ]


def test_it_says_who_signs_what_an_unsigned_search_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replace(outcome("a", "b", None), models={})
    code, out, _ = told(found, monkeypatch, capsys)
    assert (code, out.splitlines()[1:]) == (
        0,
        ["best   a", "model  none yet: the attestor signs it"],
    )
