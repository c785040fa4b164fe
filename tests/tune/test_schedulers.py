"""Ray's schedulers over the governed order, driven with synthetic results: no cluster."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.tune.schedulers import AsyncHyperBandScheduler

from govray.tune.objective import report
from govray.tune.point_searcher import Points, from_sequence
from govray.tune.recipe import Recipe, load_searcher
from govray.tune.schedulers import HalvingScheduler
from govray.tune.successive_halving import AsynchronousHalving, Bracket
from tests.support.fake_tuner import FakeController, FakeTrial
from tests.support.search_files import search_file

LIMIT = {"statistic": "min_k_plus_plus", "unit": "nats", "tau": 1.0}


def by_loss(trial: FakeTrial, every: int = 50) -> dict[str, Any]:
    """Loss falls with steps, and is lower the nearer the learning rate is to 1e-3."""
    trial.step += every
    off = abs(math.log10(trial.config["optimizer.lr"]) + 3)
    return report(
        step=trial.step, value=1 + off + 10 / trial.step, memorization=0.0, tau=1.0
    ).to_result()


def recipe(name: str, concurrent: int = 2, **search: Any) -> Recipe:
    file = search_file(searcher=name, memorization=LIMIT, **search)
    return load_searcher(name).recipe(file, concurrent)


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("random", {}),
    ("asha", {}),
    ("asha", {"form": "stopping"}),
    ("hyperband", {}),
]


@pytest.fixture(params=FORMS, ids=lambda form: "-".join([form[0], *form[1].values()]))
def form(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param  # type: ignore[no-any-return]


def test_every_search_ends_within_its_room(form: tuple[str, dict[str, Any]]) -> None:
    found = FakeController(recipe(form[0], concurrent=3, **form[1]), by_curve).run()
    assert len(found.trials) == 10
    assert found.most_active <= 3
    assert max(trial.step for trial in found.trials) == 900
    if form[0] != "random":
        assert found.reports * 50 < 9000 * 0.7


def by_curve(trial: FakeTrial) -> dict[str, Any] | None:
    """As `by_loss`, in a run that ends by itself at its last step."""
    return trial.last_result | {"done": True} if trial.step >= 900 else by_loss(trial)


def test_a_promoted_trial_goes_before_a_new_one() -> None:
    losses = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])

    def curve(trial: FakeTrial) -> dict[str, Any]:
        trial.step += 100
        return report(step=trial.step, value=next(losses), memorization=0.0, tau=1.0).to_result()

    points = Points(from_sequence([{"n": n} for n in range(9)]), 9, 1)
    machine = AsynchronousHalving([Bracket((100, 1000), 9)], 2)
    from ray.tune import TuneConfig

    config = TuneConfig(
        metric="objective",
        mode="min",
        search_alg=points,
        scheduler=HalvingScheduler(machine, points),
    )
    found = FakeController(Recipe({}, config), curve)
    found.step()  # t0 reports 1.0, and goes on
    found.advance(found.trials[0])  # t0, 2.0 at step 200
    found.trials[0].step = 900
    found.advance(found.trials[0])  # its end
    for _ in range(3):
        found.step()  # t1 4.0, t2 5.0, t3 6.0: two in four go on, so t1 is promoted
    assert found.trials[1].status == "PAUSED"
    found.step()
    assert len(found.trials) == 4
    assert found.trials[1].status == "RUNNING"


def results(count: int, seed: int) -> Iterator[tuple[str, int, float]]:
    draw = random.Random(seed)
    level = {f"t{i}": draw.random() * 3 for i in range(count)}
    for step in (50, 100, 150, 300, 450, 900):
        for name in draw.sample(sorted(level), count):
            yield name, step, level[name] + draw.random() / step


@pytest.mark.parametrize("seed", range(5))
def test_without_a_limit_it_is_ray_s_own_search_exactly(seed: int) -> None:
    file = search_file(searcher="asha", form="stopping", mode="conservative")
    ours = load_searcher("asha").recipe(file, 1).tune_config.scheduler
    assert type(ours) is AsyncHyperBandScheduler
    ours.set_search_properties("objective", "min")
    rays = AsyncHyperBandScheduler(
        time_attr="step", metric="value", mode="min", max_t=900, grace_period=100,
        reduction_factor=3, brackets=3,
    )  # fmt: skip
    trials = {f"t{i}": FakeTrial(f"t{i}") for i in range(30)}
    for scheduler in (ours, rays):
        np.random.seed(seed)
        for trial in trials.values():
            scheduler.on_trial_add(None, trial)
    decisions = []
    for name, step, loss in results(30, seed):
        result = report(step=step, value=loss, memorization=5.0).to_result()
        one = ours.on_trial_result(None, trials[name], result)
        assert one == rays.on_trial_result(None, trials[name], result)
        decisions.append(one)
    assert {"STOP", "CONTINUE"} <= set(decisions)


ALONE = SimpleNamespace(get_trials=list)


def stopping(brackets: list[Bracket]) -> HalvingScheduler:
    points = Points(from_sequence([{}] * 30), 30, 30)
    return HalvingScheduler(AsynchronousHalving(brackets, 3, stopping=True), points)


def decisions(scheduler: Any, seed: int, of_loss: Callable[[float], float]) -> list[str]:
    scheduler.set_search_properties("objective", "min")
    np.random.seed(seed)
    trials = {f"t{i}": FakeTrial(f"t{i}") for i in range(30)}
    for trial in trials.values():
        scheduler.on_trial_add(ALONE, trial)
    return [
        scheduler.on_trial_result(ALONE, trials[name], {"step": step, "objective": of_loss(loss)})
        for name, step, loss in results(30, seed)
    ]


def test_the_place_rule_of_the_issue() -> None:
    scheduler = stopping([Bracket((1, 9), 9)])
    scheduler.set_search_properties("objective", "min")

    def decide(name: str, objective: float) -> str:
        trial = FakeTrial(name)
        scheduler.on_trial_add(ALONE, trial)
        return scheduler.on_trial_result(ALONE, trial, {"step": 1, "objective": objective})

    said = [decide(name, value) for name, value in zip("abcdef", [5, 6, 7, 5, 9, 5.5], strict=True)]
    assert said == ["CONTINUE", "STOP", "STOP", "CONTINUE", "STOP", "STOP"]
    assert scheduler.reasons["b"] == "place 2 of 2 at step 1"
    assert scheduler.reasons["f"] == "place 3 of 6 at step 1"
    assert decide("g", math.inf) == "STOP"
    assert scheduler.reasons["g"] == "its objective is no finite number"


def test_a_memorizer_stops_where_a_governed_trial_is() -> None:
    """Memorizers with the lowest losses: plain ASHA takes one to the end, governed ASHA none."""

    def curve(trial: FakeTrial) -> dict[str, Any]:
        memorizes = int(trial.trial_id[1:]) % 2 == 1
        trial.step += 100
        loss = (0.01 if memorizes else 2.0) + trial.config["optimizer.lr"]
        m = 3.0 if memorizes and trial.step >= 300 else 0.0  # it appears late
        return report(step=trial.step, value=loss, memorization=m, tau=tau).to_result()

    tau = 1.0
    found = FakeController(recipe("asha"), curve).run()
    to_the_end = [trial for trial in found.trials if trial.step == 900]
    assert any(trial.last_result["v"] == 0 for trial in to_the_end)
    best = min(to_the_end, key=lambda trial: trial.last_result["objective"])
    assert best.last_result["v"] == 0
    tau = math.inf
    plain = FakeController(recipe("asha"), curve).run()
    to_the_end = [trial for trial in plain.trials if trial.step == 900]
    best = min(to_the_end, key=lambda trial: trial.last_result["objective"])
    assert best.last_result["memorization"] == 3.0
