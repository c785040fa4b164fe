"""The recipes: short, all six there, each what Ray Tune takes; none may vary what must not."""

from __future__ import annotations

import random

import pytest

from govray.tune.ray_space import within
from govray.tune.recipe import load_searcher
from tests.support.search_files import search_file
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
    recipe = load_searcher("bayesian").recipe(file, 2)
    searcher = recipe.tune_config.search_alg
    assert searcher.set_search_properties("objective", "min", recipe.param_space)
    for number in range(30):
        point = searcher.suggest(str(number))
        file.trial(point)
        assert set(point) == set(space)
        assert point == within(file.search.space, point)
        worst = float("inf") if number % 3 == 0 else random.random()
        searcher.on_trial_complete(str(number), {"objective": worst})
