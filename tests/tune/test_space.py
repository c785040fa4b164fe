"""Spaces: nested names are dotted ones, options bring names of their own, and each searcher keeps
to one branch."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from govray.tune.points import draw
from govray.tune.ray_space import within
from govray.tune.recipe import load_searcher
from govray.tune.search_config import SearchFile, parse_search
from govray.tune.search_record import file_value
from govray.tune.space import active
from tests.support.search_files import EXPERIMENT, SEARCH, search_file

DECAY, RATE, WIDTH = "optimizer.weight_decay", "optimizer.lr", "hyperparameters.width"
CLIP, WARM = "optimizer.clip_norm", "optimizer.warmup_steps"
TREE: dict[str, Any] = {
    RATE: {"log": [1e-4, 1e-2], "count": 2},
    CLIP: {
        "one_of": [
            {"value": None, "space": {WARM: {"choice": [0, 10, 20]}}},
            {"value": 1.0},
            {
                "value": 2.0,
                "space": {
                    DECAY: {"choice": [0.0, 0.1]},
                    WIDTH: {
                        "one_of": [
                            {"value": 16, "space": {"seed": {"int": [1, 2]}}},
                            {"value": 32},
                        ]
                    },
                },
            },
        ]
    },
}
BRANCHES = {
    frozenset({RATE, CLIP, WARM}),
    frozenset({RATE, CLIP}),
    frozenset({RATE, CLIP, DECAY, WIDTH}),
    frozenset({RATE, CLIP, DECAY, WIDTH, "seed"}),
}


def tree(**search: Any) -> SearchFile:
    return search_file(space=TREE, **search)


def check(file: SearchFile, point: dict[str, Any]) -> None:
    """The point is on one branch, in its ranges, and a trial."""
    assert frozenset(point) in BRANCHES
    assert set(active(file.search.space, point)) == set(point)
    assert point == within(file.search.space, point)
    file.trial(point)


def test_nested_names_are_dotted_ones() -> None:
    nested = {
        "optimizer": {"lr": {"log": [1e-4, 1e-2]}, "weight_decay": {"choice": [0.0]}},
        "data": {"rows_per_step": {"upper_half": {"int": [1, 8]}}},
    }
    dotted = {
        RATE: {"log": [1e-4, 1e-2]},
        DECAY: {"choice": [0.0]},
        "data.rows_per_step.upper_half": {"int": [1, 8]},
    }
    assert file_value(search_file(space=nested)) == file_value(search_file(space=dotted))
    assert list(search_file(space=nested).search.space) == list(dotted)


def test_an_optimizer_of_another_name_takes_none_of_the_files_arguments() -> None:
    sgd = {"optimizer.arguments.momentum": {"uniform": [0.0, 0.9]}}
    options = [
        {"value": "adamw", "space": {DECAY: {"uniform": [0.0, 0.2]}}},
        {"value": "torch.optim.SGD", "space": sgd},
    ]
    value = EXPERIMENT | {
        "optimizer": {"weight_decay": 0.3},
        "search": SEARCH | {"space": {"optimizer.name": {"one_of": options}}},
    }
    file = parse_search(value, where="x")
    plain = file.trial({"optimizer.name": "torch.optim.SGD", "optimizer.arguments.momentum": 0.5})
    assert plain.optimizer.arguments == {"momentum": 0.5}
    assert "weight_decay" not in plain.optimizer.model_dump()
    same = file.trial({"optimizer.name": "adamw"})
    assert same == file.experiment
    for number in range(20):
        assert file.trial(draw(file.search.space, 17, number)).optimizer.lr == 3e-4


def test_a_draw_is_on_one_branch_and_depends_on_seed_number_and_name_alone() -> None:
    file = tree()
    found = Counter()
    for number in range(200):
        point = draw(file.search.space, 17, number)
        check(file, point)
        found[frozenset(point)] += 1
        assert point == draw(file.search.space, 17, number)
        alone = draw({RATE: file.search.space[RATE]}, 17, number)
        assert alone == {RATE: point[RATE]}
    assert set(found) == BRANCHES


def test_optuna_draws_on_one_branch_and_learns_from_points_of_others() -> None:
    file = tree(searcher="bayesian", max_trials=40)

    def drawn() -> list[dict[str, Any]]:
        searcher = load_searcher("bayesian").recipe(file, 2).tune_config.search_alg
        elsewhere = draw(file.search.space, 5, 0)
        searcher.learn(elsewhere, {"objective": 0.5})
        noise, points = random.Random(3), []
        for number in range(40):
            points.append(searcher.suggest(str(number)))
            value = abs(points[-1][RATE] - 5e-3) + 0.001 * noise.random()
            searcher.on_trial_complete(str(number), {"objective": value})
        return points

    points = drawn()
    for point in points:
        check(file, point)
    assert {frozenset(point) for point in points} == BRANCHES
    assert points == drawn()
