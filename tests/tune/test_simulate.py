"""A search's cost before it runs: the issue's preview, and what the command shows of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from govray.cli import main
from govray.tune.brackets import Bracket
from govray.tune.dry_run import halving
from tests.support.search_files import search_file, search_value


def test_the_preview_of_the_issue() -> None:
    preview = halving(search_file())
    assert preview.ends == {100: 5, 300: 3, 900: 2}
    assert preview.brackets == (Bracket((100, 300, 900), 7), Bracket((300, 900), 3))
    assert (preview.trials, preview.budget, preview.most) == (10, 3200, 9000)


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
    assert "Budget 3,200 steps, 36% of 9,000 if none ends early" in shown
    assert "optimizer.lr=" in shown
