"""What a search is said to cost, against the state machine that decides; and void settings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from govray.cli import app
from govray.errors import UsageError
from govray.tune.dry_run import Preview, simulated_steps
from govray.tune.recipe import load_searcher
from govray.tune.search_config import SearchFile, read_search
from govray.tune.successive_halving import Action, AsynchronousHalving, Bracket
from tests.support.search_files import search_file
from tests.support.tree import ROOT


def taken(brackets: tuple[Bracket, ...], divisor: int, seed: int, **how: bool) -> int:
    """Steps of a search whose trials report in a drawn order, with drawn results and room."""
    draw = random.Random(seed)
    machine = AsynchronousHalving(brackets, divisor, **how)
    room, drift = draw.randint(1, 8), draw.choice((-9.0, 0.0, 9.0))
    new = [f"{n}" for n in range(sum(each.trials for each in brackets))]
    running: list[str] = []
    while new or running:
        while new and len(running) < room:
            running.append(new.pop())
            machine.add(running[-1])
            for each in machine.close() if not new else ():
                assert each.action is Action.STOP
        trial = running.pop(draw.randrange(len(running)))
        at = machine.trials[trial]
        step = brackets[at.bracket].rungs[at.rung]
        loss = draw.random() + drift * len(new) / 10
        decisions = machine.report(trial, step, loss)
        running += [d.trial for d in decisions if d.action in (Action.CONTINUE, Action.RESUME)]
    assert machine.done
    return sum(each.step for each in machine.trials.values())


SHAPES: list[dict[str, Any]] = [
    {"max_trials": 6, "divisor": 2, "max_rungs": 3},
    {"max_trials": 16, "divisor": 4, "max_rungs": 3, "mode": "aggressive"},
    {"max_trials": 30, "divisor": 3, "mode": "conservative"},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_order_of_arrivals_takes_more_than_the_greatest(shape: dict[str, Any]) -> None:
    for searcher, form in (("asha", "promotion"), ("asha", "stopping"), ("hyperband", "promotion")):
        file = search_file(searcher=searcher, form=form, **shape)
        found = load_searcher(searcher).preview(file)
        how = {"synchronous": searcher == "hyperband", "stopping": form == "stopping"}
        spent = [taken(found.brackets, shape["divisor"], seed, **how) for seed in range(200)]
        assert max(spent) <= found.most
        planned = sum(step * trials for step, trials in found.ends.items())
        if searcher == "hyperband":
            assert set(spent) == {found.most} == {found.expected} == {planned}
        else:
            # The control: what the plan alone promises is broken.
            assert max(spent) > planned
            assert planned < found.expected < found.most


def test_the_greatest_is_reached_where_each_trial_is_better_than_those_before() -> None:
    file = search_file(searcher="asha", **SHAPES[0])
    found = load_searcher("asha").preview(file)
    falling = [float(-number) for number in range(6)]
    assert simulated_steps(found.brackets, 2, falling, stopping=False) == found.most == 6 * 900


def test_what_is_expected_is_the_mean_over_orders() -> None:
    file = search_file(searcher="asha", form="stopping", mode="aggressive", max_trials=9)
    found = load_searcher("asha").preview(file)
    [bracket] = found.brackets
    assert bracket.rungs == (100, 300, 900)
    draw, spent = random.Random(5), []
    for _ in range(3000):
        losses = draw.sample(range(9), 9)
        spent.append(simulated_steps(found.brackets, 3, losses, stopping=True))
    assert found.expected == pytest.approx(sum(spent) / 3000, rel=0.03)


def test_a_population_is_told_where_it_is_compared() -> None:
    file = search_file(searcher="pbt", max_time=40, max_rungs=4, max_trials=6)
    searcher = load_searcher("pbt")
    found = searcher.preview(file)
    assert found.brackets == (Bracket((10, 20, 30, 40), 6),)
    assert found.ends == {40: 6}
    assert found.expected == found.most == 240
    assert searcher.recipe(file, 1).commit_at == (10, 20, 30)


def preview(**search: Any) -> Preview:
    file: SearchFile = search_file(**search)
    return load_searcher(file.search.searcher).preview(file)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ({"searcher": "pbt", "max_trials": 1}, "no trial to take over"),
        ({"searcher": "pbt", "max_rungs": 1}, "none takes over another"),
        ({"searcher": "pbt", "max_time": 1}, "none takes over another"),
        ({"searcher": "asha", "max_rungs": 1}, "no trials are compared before their end"),
        ({"searcher": "asha", "max_trials": 2}, "no trials are compared before their end"),
        ({"searcher": "hyperband", "max_trials": 1}, "no trials are compared before their end"),
        ({"searcher": "bayesian", "max_trials": 10}, "nothing is learnt"),
    ],
)
def test_settings_that_make_it_another_search_are_refused(
    search: dict[str, Any], says: str
) -> None:
    found = preview(**search)
    assert found.void is not None
    assert says in found.void
    with pytest.raises(UsageError, match=says):
        found.require_method()
    # The control: with room for its method it is what it is called.
    enough = {"max_trials": 11, "max_rungs": 3, "max_time": 900}
    preview(**search | enough).require_method()


def test_the_shipped_search_is_not_refused_and_its_dry_run_says_both_budgets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert app.run(["tune", "jobs/tune.yaml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "steps as expected, 1,200 at most if none fails" in out
    assert "Refused" not in out
    assert app.run(["tune", "jobs/tune.yaml", "--dry-run", "--set", "search.max_rungs=1"]) == 0
    assert "Refused as asha: with max_trials: 4, max_rungs: 1" in capsys.readouterr().out
    assert read_search(Path("jobs/tune.yaml")).search.searcher == "asha"
