"""The search benchmark: its arithmetic on made-up curves, and that the command runs."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

from benchmarks import search
from benchmarks.search_race import Promoting, Reached, Stopping, ToTheEnd, ladders, race, since
from benchmarks.search_trials import RATE, RESTRICTED, WIDTH, Recipe, build
from govray.errors import CouldNotCheck, UsageError
from govray.tune.brackets import Bracket
from govray.tune.objective import TrialReport, report
from govray.tune.points import Point

RUNGS = [Bracket((10, 30, 90), 18)]


def curve(point: Point, step: int) -> TrialReport:
    """Loss falls to the point's level; odd points memorize from step 20 on."""
    m = 2.0 if point["n"] % 2 and step >= 20 else 0.0
    return report(step=step, value=point["level"] + 10 / step, memorization=m, tau=1.0)


def point(number: int) -> Point:
    return {"n": number, "level": random.Random(number).random()}


def test_full_length_trials_use_the_budget_exactly() -> None:
    found = race(ToTheEnd(4, 90), point, curve, workers=2, every=10, budget=360)
    best = min(point(n)["level"] for n in (0, 2)) + 10 / 90
    assert found[-1].loss == pytest.approx(best)
    first = found[0]
    assert (first.ticks, first.steps, first.starts) == (10, 10, 2)


def test_a_memorizer_is_no_result_once_it_memorizes() -> None:
    found = race(ToTheEnd(1, 90), lambda n: {"n": 1, "level": 0.0}, curve, workers=1, every=10,
                 budget=1000)  # fmt: skip
    assert [(each.steps, math.isinf(each.loss)) for each in found] == [(10, False), (20, True)]


def test_nothing_is_counted_beyond_the_budget() -> None:
    found = race(ToTheEnd(9, 90), point, curve, workers=3, every=10, budget=50)
    assert max(each.steps for each in found) <= 50


@pytest.mark.parametrize("form", [Stopping, Promoting])
def test_halving_spends_less_on_bad_points(form: type[Stopping] | type[Promoting]) -> None:
    steps: dict[int, int] = {}

    def counted(of: Point, step: int) -> TrialReport:
        steps[of["n"]] = max(step, steps.get(of["n"], 0))
        return curve(of, step)

    found = race(form(RUNGS, 3), point, counted, workers=3, every=10, budget=10**6)
    assert len(steps) == 18
    assert sum(steps.values()) < 18 * 90 * 0.6
    assert found[-1].loss < 0.6


def test_ladders_fit_the_budget() -> None:
    steps = Recipe().steps
    brackets = ladders(steps, full_trials=search.FULL_TRIALS, divisor=3, rungs=4)
    assert sum(each.trials for each in brackets) > 2 * search.FULL_TRIALS
    assert brackets[0].rungs == (9, 27, 81, 243)


def test_the_target_is_what_both_reach_and_ratios_are_paired_by_seed() -> None:
    def seed(fast: int) -> dict[str, list[Reached]]:
        slow = [Reached(100, 400, 4, 3.0), Reached(200, 800, 8, 2.0)]
        late = Reached(400, 1600, 12, 2.0)
        quick = [Reached(fast, 4 * fast, 9, 2.0), Reached(500, 2000, 30, 1.0)]
        return {"random": slow, "grid": [*slow[:1], late], "asha": quick, "asha_promotion": quick}

    found = search.summary([seed(20), seed(40), seed(100)], Recipe(), 0.5)
    asha = found["methods"]["asha"]["vs_random"]
    assert asha["epochs_ratio"] == asha["seconds_ratio"] == 0.2
    assert asha["epochs_ratio_by_seed"] == [0.1, 0.2, 0.5]
    assert asha["seconds"] == 20.0
    assert asha["seconds_of_other"] == 100.0
    assert asha["epochs"] == pytest.approx(160 / Recipe().steps_per_epoch)
    assert asha["ends_lower"] == 3
    assert found["methods"]["asha"]["vs_grid"]["epochs_ratio"] < 0.2, "the grid ends later"
    assert found["methods"]["random"]["final_loss"] == 2.0
    with pytest.raises(CouldNotCheck, match="no trial within the limit"):
        search.summary([seed(1) | {"grid": [Reached(9, 9, 1, math.inf)]}], Recipe(), 0.5)


def test_a_loss_that_is_lost_again_was_not_reached() -> None:
    found = [Reached(1, 1, 1, 3.0), Reached(2, 2, 1, 1.0), Reached(3, 3, 1, 4.0),
             Reached(4, 4, 1, 2.0), Reached(5, 5, 1, 1.5)]  # fmt: skip
    assert since(found, 2.5).steps == 4
    assert since(found, 1.5).steps == 5
    assert since(found, 9.0).steps == 1


def docstrings(count: int) -> list[str]:
    draw = random.Random(0)
    return [
        " ".join(draw.choice(["the", "of", "a", "row", "gives", "no"]) for _ in range(60))
        for _ in range(count)
    ]


def test_half_of_the_validation_rows_are_near_rows_that_were_trained_on() -> None:
    recipe = Recipe(public=64)
    data = build(recipe, 3, docstrings(200))
    fresh, near = data.validation[:24], data.validation[24:]
    assert not set(map(tuple, data.restricted)) & set(map(tuple, data.held_back))
    for row in near:
        apart = min(
            sum(a != b for a, b in zip(row, other, strict=True)) for other in data.restricted
        )
        assert apart <= 12
    assert not set(map(tuple, fresh)) & set(map(tuple, data.public))
    with pytest.raises(UsageError, match="too few"):
        build(Recipe(), 3, docstrings(20))


@pytest.mark.slow
def test_the_command_prints_a_table_and_one_json_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "library", lambda: (docstrings(300), {}))
    threads = torch.get_num_threads()
    try:
        search.main(["--quick", "--seeds", "1"])
    finally:
        torch.set_num_threads(threads)  # the command's own
    *table, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert set(told["methods"]) == set(search.METHODS)
    for name, found in told["methods"].items():
        assert found["final_loss"] > 0
        assert ("vs_random" in found) == (name not in search.BASELINES)
    assert told["methods"]["asha"]["vs_random"]["seconds"] > 0
    assert told["seeds"] == [1]
    assert any(line.startswith("asha against random") for line in table)


def test_the_grid_has_as_many_points_as_the_budget_pays_and_lies_in_the_space() -> None:
    assert set(search.space(Recipe()).space) == {RATE, WIDTH, RESTRICTED}
    points = search.crossings(Recipe())
    assert len(points) == search.FULL_TRIALS
    assert sorted({each[RATE] for each in points}) == pytest.approx([1e-6, 1e-3, 1.0])
