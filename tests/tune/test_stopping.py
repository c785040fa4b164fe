"""Early stopping: each rule stops what it says, with its reason, and nothing else."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from govray.cli import main
from govray.errors import UsageError
from govray.tune.objective import TrialReport, report
from govray.tune.stop_rules import Custom, Divergence, Memorization, NoImprovement
from tests.support.search_files import search_value


def reports(*losses: float, m: float | None = 0.0, tau: float = 1.0) -> list[TrialReport]:
    return [
        report(step=step, value=loss, memorization=m, tau=tau)
        for step, loss in enumerate(losses, 1)
    ]


def test_no_improvement_counts_reports_since_the_best() -> None:
    rule = NoImprovement(no_improvement=2)
    assert rule.reason(reports(3, 2, 2.5)) is None
    said = rule.reason(reports(3, 2, 2.5, 2))
    assert said is not None
    assert said.startswith("no improvement in 2 reports")
    assert rule.reason(reports(3, 2, 2.5, 1.9)) is None
    assert rule.reason(reports(math.nan, math.nan)) is not None
    assert rule.reason([]) is None


def test_memorization_counts_reports_in_a_row() -> None:
    rule = Memorization(memorization=2)
    clean, memorizing = reports(1, m=0.5)[0], reports(1, m=3.0)[0]
    assert rule.reason([memorizing]) is None
    assert rule.reason([memorizing, clean, memorizing]) is None
    said = rule.reason([clean, memorizing, memorizing])
    assert said == "memorization above tau in 2 reports in a row (v 2)"
    assert rule.reason(reports(1, 1, m=None)) is not None  # a limit, and nothing measured


def test_divergence_is_no_number_or_far_above_the_lowest() -> None:
    rule = Divergence(divergence=3)
    assert rule.reason(reports(2, 1, 3)) is None
    assert rule.reason(reports(2, 1, 3.1)) == "loss 3.1 is more than 3 times its lowest, 1"
    assert rule.reason(reports(2, math.nan)) == "the loss is nan"
    assert rule.reason(reports(math.inf)) == "the loss is inf"
    assert rule.reason([]) is None


def test_a_rule_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_rules")
    module.late = lambda found: "late" if found[-1].step > 2 else None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_rules", module)
    rule = Custom(rule="my_rules:late")
    assert rule.reason(reports(1, 1)) is None
    assert rule.reason(reports(1, 1, 1)) == "late"
    with pytest.raises(UsageError, match="my_rules:missing"):
        Custom(rule="my_rules:missing").reason(reports(1))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tune.yaml"
    path.write_text(yaml.safe_dump(search_value(searcher="asha")))
    return path


def test_the_command_shows_the_preview(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(config), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "tiny: asha, 10 trials, at most 900 steps" in shown
    assert re.search(r"100 +5 +500\n +300 +3 +900\n +900 +2 +1,800", shown)
    assert "Budget 4,925 steps as expected, 9,000 at most if none fails" in shown
    assert "optimizer.lr=" in shown
