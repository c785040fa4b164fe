"""A search whose corpora take turns in the monitor: a memorizer is seen at its corpus's turn."""

from __future__ import annotations

import random
from typing import Any

from govray.governance.policy.memorization_section import Band, Monitoring
from govray.tune.objective import TrialReport, conclude, report
from govray.tune.recipe import Recipe, load_searcher
from tests.support.fake_tuner import FakeController, FakeTrial
from tests.support.search_files import search_file
from tests.support.table import each_row

EVERY, TURNS, TAU = 25, 4, 1.0
CORPORA = [f"corpus-{number}" for number in range(8)]
LIMIT = {"statistic": "composite", "unit": "log odds", "tau": TAU}
SECTION = Monitoring(every=EVERY, turns=TURNS, probe_rows=32, bands={"*": Band(low=-2, high=2)})


def effect(corpus: str, trial: FakeTrial, step: int) -> float:
    """Every third trial memorizes one corpus, and all measures scatter."""
    number = int(trial.trial_id[1:])
    noise = random.Random(f"{corpus} {number} {step} {trial.config['optimizer.lr']}")
    memorizes = number % 3 == 0 and corpus == CORPORA[number % len(CORPORA)]
    return (3.0 if memorizes else 0.2) * noise.random() + (1.0 if memorizes else 0.0)


def newest(trial: FakeTrial, step: int, *, last_only: bool) -> float:
    """The largest effect, of each corpus's newest profile up to a step, or of the last profile."""
    profiles = [each for each in range(step + 1) if SECTION.due(each)]
    found: dict[str, float] = {}
    for each in profiles[-1:] if last_only else profiles[-TURNS:]:
        found |= {c: effect(c, trial, each) for c in CORPORA if SECTION.in_turn(c, each)}
    return max(found.values(), default=0.0)


def searched(searcher: str, seed: int, *, last_only: bool = False) -> str | None:
    """The best trial of a search in which memorizers have the lowest losses."""
    last: dict[str, TrialReport] = {}

    def curve(trial: FakeTrial) -> dict[str, Any]:
        trial.step += 100
        memorizes = int(trial.trial_id[1:]) % 3 == 0
        found = report(
            step=trial.step,
            value=(0.1 if memorizes else 1.0) + trial.config["optimizer.lr"] + 10 / trial.step,
            memorization=newest(trial, trial.step - 1, last_only=last_only),
            tau=TAU,
        )
        last[trial.trial_id] = found
        return found.to_result() | ({"done": True} if trial.step == 900 else {})

    file = search_file(searcher=searcher, memorization=LIMIT, seed=seed, max_trials=12)
    recipe: Recipe = load_searcher(searcher).recipe(file, 2)
    FakeController(recipe, curve, seed=seed).run()
    return conclude(last).best


@each_row("searcher", ["asha", "random"])
def test_no_search_chooses_the_memorizer(searcher: str) -> None:
    best = [searched(searcher, seed) for seed in range(1, 21)]
    assert all(each is not None and int(each[1:]) % 3 for each in best)
    # By the last profile alone, most memorizers are out of turn.
    best = [searched(searcher, seed, last_only=True) for seed in range(1, 21)]
    assert any(each is not None and int(each[1:]) % 3 == 0 for each in best)
