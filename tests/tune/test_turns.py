"""A search whose corpora take turns in the monitor: a memorizer is seen at its corpus's turn."""

from __future__ import annotations

import random
from typing import Any

from govray.governance.policy.memorization_section import Monitoring
from govray.governance.record.e_process import effect
from govray.governance.record.entropy_profile import (
    EntropyProfile,
    Measure,
    MonitoredCorpus,
    Side,
)
from govray.governance.record.rank_evidence import top_sizes
from govray.tune.objective import TrialReport, conclude, report
from govray.tune.recipe import Recipe, load_searcher
from tests.support.fake_tuner import FakeController, FakeTrial
from tests.support.search_files import search_file
from tests.support.table import each_row

EVERY, TURNS, TAU = 25, 4, 0.4
CORPORA = [f"corpus-{number}" for number in range(8)]
LIMIT = {"statistic": "composite", "unit": "log odds", "tau": TAU}
SECTION = Monitoring(every=EVERY, turns=TURNS, probe_rows=128, odds={"*": 1.5})
SUBJECTS = {corpus: MonitoredCorpus("trunk", "flag", None, 9) for corpus in CORPORA}
TRAINED, HELD = 96, 32


def measure(corpus: str, trial: FakeTrial, step: int) -> Measure:
    """Every third trial memorizes one corpus."""
    number = int(trial.trial_id[1:])
    draw = random.Random(f"{corpus} {number} {step} {trial.config['optimizer.lr']}")
    memorizes = number % 3 == 0 and corpus == CORPORA[number % len(CORPORA)]
    scores = [(draw.gauss(2.0 * memorizes, 1), 1) for _ in range(TRAINED)]
    scores += [(draw.gauss(0, 1), 0) for _ in range(HELD)]
    best = [trained for _, trained in sorted(scores, reverse=True)]
    return Measure(
        corpus=corpus,
        layer="head",
        probe=Side(records=TRAINED, entropy=1.0),
        reserve=Side(records=HELD, entropy=1.0),
        top=tuple(sum(best[:size]) for size in top_sizes(len(best))),
        tested=True,
    )


def profile(trial: FakeTrial, step: int) -> EntropyProfile:
    """Of the corpora whose turn it is."""
    due = [corpus for corpus in CORPORA if SECTION.in_turn(corpus, step)]
    return EntropyProfile(
        step=step,
        statistic="composite",
        measures=tuple(measure(corpus, trial, step) for corpus in due),
    )


def newest(trial: FakeTrial, step: int, *, last_only: bool) -> float:
    """M by each corpus's newest profile up to a step, or by the last profile alone."""
    due = [each for each in range(step + 1) if SECTION.due(each)]
    due = [each for each in due if any(SECTION.in_turn(corpus, each) for corpus in CORPORA)]
    history = [profile(trial, each) for each in due[-1 if last_only else -TURNS :]]
    return effect(history, SECTION, SUBJECTS, step)


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
