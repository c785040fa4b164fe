"""A search's cost before it runs: the issue's preview, and what the command shows of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from govray.cli import main
from govray.errors import UsageError
from govray.tune.brackets import Bracket
from govray.tune.dry_run import grid_points, halving, learned_points, random_points, trials_ending
from govray.tune.recipe import load_searcher
from tests.support.search_files import search_file, search_value


def test_the_preview_of_the_issue() -> None:
    preview = halving(search_file())
    assert preview.ends == {100: 5, 300: 3, 900: 2}
    assert preview.brackets == (Bracket((100, 300, 900), 7), Bracket((300, 900), 3))
    assert (preview.trials, preview.budget, preview.most) == (10, 3200, 9000)


def test_other_searchers_run_everything_to_the_end() -> None:
    assert random_points(search_file()).ends == {900: 10}
    assert learned_points(search_file()).points == ()
    grid = grid_points(search_file(space={"seed": {"int": [1, 7]}}))
    assert (grid.ends, grid.budget) == ({900: 7}, 6300)
    assert [point["seed"] for point in grid.points] == [1, 2, 3, 4, 5]


def test_hyperband_has_all_brackets() -> None:
    lengths = [len(bracket.rungs) for bracket in halving(search_file(), "conservative").brackets]
    assert lengths == [3, 2, 1]


def test_a_bracket_of_fewer_trials_than_the_divisor_sends_one_to_the_end() -> None:
    assert trials_ending([Bracket((1, 2, 4), 1)], 3) == {4: 1}
    assert trials_ending([Bracket((1, 2, 4), 2)], 3) == {1: 1, 4: 1}


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


def test_the_command_shows_it_to_programs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(config), "--dry-run", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["ends"] == [
        {"step": 100, "trials": 5},
        {"step": 300, "trials": 3},
        {"step": 900, "trials": 2},
    ]
    assert (told["trials"], told["budgetSteps"], told["mostSteps"]) == (10, 3200, 9000)
    assert len(told["points"]) == 5


def test_a_recipe_of_one_s_own_is_found_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def preview(file): return 3\ndef recipe(file, concurrent): return 4\n")
    found = load_searcher(str(path))
    assert (found.preview(search_file()), found.recipe(search_file(), 1)) == (3, 4)


def test_the_working_directory_s_recipe_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "searchers").mkdir()
    (tmp_path / "searchers" / "random.py").write_text("preview = recipe = lambda *a: 'mine'\n")
    monkeypatch.chdir(tmp_path)
    assert load_searcher("random").preview(search_file()) == "mine"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no recipe"),
        ("raise ValueError('broken')", "does not load: ValueError: broken"),
        ("def preview(file): ...", "has no function recipe"),
    ],
)
def test_a_recipe_that_is_none_is_named(source: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(UsageError) as caught:
        load_searcher(str(path))
    assert message in str(caught.value)
    with pytest.raises(UsageError, match="no recipe 'nonesuch'"):
        load_searcher("nonesuch")
