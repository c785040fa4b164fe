"""The recipes: short, all six there, each what Ray Tune takes; none may vary what must not."""

from __future__ import annotations

import math
import random
import re
import shlex

import pytest
import yaml

from govray.cli import app
from govray.tune.objective import Goal, report
from govray.tune.ray_space import within
from govray.tune.recipe import load_searcher
from govray.tune.search_config import VARIABLE, parse_search, read_search
from tests.support.search_files import EXPERIMENT, search_file
from tests.support.table import each_row
from tests.support.tree import ROOT

FOLDER = ROOT / "searchers"
NAMES = ["asha", "bayesian", "grid", "hyperband", "pbt", "random"]
ONE = {"optimizer.lr": {"log": [1e-4, 1e-2], "count": 3}}


def test_the_six_are_there_and_short() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) < 60


@pytest.mark.parametrize("name", NAMES)
def test_each_minimizes_the_objective(name: str) -> None:
    file = search_file(searcher=name, space=ONE)
    searcher = load_searcher(name)
    recipe = searcher.recipe(file, 10)
    assert recipe.tune_config.metric == "objective"
    assert recipe.tune_config.mode == "min"
    assert searcher.preview(file).trials == (3 if name == "grid" else 10)


def test_optuna_draws_within_the_space() -> None:
    space = ONE | {"seed": {"int": [3, 5]}, "optimizer.weight_decay": {"choice": [0.0, 0.1]}}
    file = search_file(space=space)
    searcher = load_searcher("bayesian").recipe(file, 2).tune_config.search_alg
    for number in range(30):
        point = searcher.suggest(str(number))
        file.trial(point)
        assert set(point) == set(space)
        assert point == within(file.search.space, point)
        worst = float("inf") if number % 3 == 0 else random.random()
        searcher.on_trial_complete(str(number), {"objective": worst})


def drawn_by_optuna(tau: float, goal: Goal, seed: int) -> list[float]:
    """Learning rates of a search in which the higher ones have the better metric, and memorize."""
    limit = {"statistic": "composite", "unit": "log odds", "tau": tau}
    file = search_file(
        searcher="bayesian", goal=goal, space=ONE, memorization=limit, seed=seed, max_trials=40
    )
    searcher = load_searcher("bayesian").recipe(file, 1).tune_config.search_alg
    assert searcher is not None
    drawn = []
    for number in range(40):
        rate = searcher.suggest(str(number))["optimizer.lr"]
        drawn.append(rate)
        last = report(
            step=9,
            value=300 * rate if goal == "max" else -300 * rate,
            memorization=1000 * rate,
            tau=file.search.tau,
            goal=goal,
        )
        if number == 7:  # as if a search that goes on had drawn it elsewhere
            searcher.on_trial_complete(str(number), None, True)
            searcher.learn({"optimizer.lr": rate}, last.to_result())
        else:
            searcher.on_trial_complete(str(number), last.to_result())
    told = [each for each in searcher._ot_study.trials if each.value is not None]
    assert len(told) == 40
    for each in told:
        rate = each.params["optimizer.lr"]
        assert each.value == -300 * rate
        over = {} if math.isinf(tau) else {"memorization": max(0.0, 1000 * rate - tau)}
        assert each.constraints == over
    return drawn


@each_row("goal", ["min", "max"])
def test_optuna_learns_where_the_limit_lies(goal: Goal) -> None:
    found = {}
    for tau in (2.0, math.inf):
        drawn = [rate for seed in (1, 2, 3) for rate in drawn_by_optuna(tau, goal, seed)[20:]]
        found[tau] = sum(1000 * rate <= 2.0 for rate in drawn) / len(drawn)
    assert found[2.0] >= 0.5
    assert found[math.inf] <= 0.15  # told nothing of M, it goes where trials memorize


PAGE = (ROOT / "docs" / "search.md").read_text()


def test_its_file_is_a_search() -> None:
    [section] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    found = parse_search(EXPERIMENT | yaml.safe_load(section), where="docs/search.md")
    assert found.search.tau == 0.4
    for name in VARIABLE:
        assert f"`{name}`" in PAGE


def test_the_file_that_it_names_is_a_search_and_can_be_previewed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    dry, real = re.findall(r"^\$ (?:GOVRAY_KEY=\S+ )?govray (.*)$", PAGE, re.M)
    assert dry == f"{real} --dry-run"
    assert app.run(shlex.split(dry)) == 0
    assert "4 trials" in capsys.readouterr().out
    assert read_search(shlex.split(real)[1]).search.searcher == "asha"
