"""Population-based training: what may change, how it does, and turns where there is less room."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from govray.errors import UsageError
from govray.tune.objective import report
from govray.tune.pbt_scheduler import Population
from govray.tune.ray_space import within
from govray.tune.recipe import load_searcher
from govray.tune.space import active
from tests.support.search_files import search_file

RATE, CLIP, WARM = "optimizer.lr", "optimizer.clip_norm", "optimizer.warmup_steps"
SPACE: dict[str, Any] = {
    RATE: {"log": [1e-4, 1e-2]},
    "hyperparameters.dropout": {"uniform": [0.0, 0.5]},
    "optimizer.betas": {"choice": [[0.9, 0.95], [0.8, 0.9]]},
    CLIP: {
        "one_of": [{"value": None}, {"value": 1.0, "space": {WARM: {"int": [1, 9]}}}],
    },
}


class FakeTrial:
    """What Ray's class uses of a trial."""

    def __init__(self, trial_id: str, config: dict[str, Any]) -> None:
        self.trial_id, self.config, self.experiment_tag = trial_id, config, ""
        self.status = "PENDING"
        self.step, self.score = 0, 0.0
        self.checkpoint: Any = None
        self.temporary_state = SimpleNamespace(saving_to=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace())
        self.last_result: dict[str, Any] = {}
        self.set_experiment_tag = lambda tag: None

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config


class FakeController:
    """Ray's loop around the scheduler, one report at a time, in a drawn order."""

    def __init__(self, concurrent: int, seed: int = 17, order: int = 0) -> None:
        file = search_file(searcher="pbt", space=SPACE, max_trials=6, max_rungs=9, seed=seed)
        config = load_searcher("pbt").recipe(file, concurrent).tune_config
        self.scheduler, self.points = config.scheduler, config.search_alg
        self.scheduler.set_search_properties(config.metric, config.mode)
        self.space = file.search.space
        self.order = random.Random(order)
        self.trials: list[FakeTrial] = []
        self.most_running = self.pauses = 0
        self.spread = 0
        self.exploits: list[tuple[str, int, dict[str, Any]]] = []

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    def _schedule_trial_save(self, trial: FakeTrial, result: dict[str, Any]) -> Any:
        trial.checkpoint = (trial.step, trial.score)
        return trial.checkpoint

    def pause_trial(self, trial: FakeTrial, should_checkpoint: bool) -> None:
        trial.status = "PAUSED"

    def run(self) -> FakeController:
        while self.turn():
            pass
        return self

    def turn(self) -> bool:
        suggested = self.points.suggest(f"t{len(self.trials)}")
        if isinstance(suggested, dict):
            self.trials.append(FakeTrial(f"t{len(self.trials)}", suggested))
            self.scheduler.on_trial_add(self, self.trials[-1])
        chosen = self.scheduler.choose_trial_to_run(self)
        if chosen is not None:
            chosen.status = "RUNNING"
            taken = vars(chosen.run_metadata.checkpoint_manager).pop(
                "_latest_checkpoint_result", None
            )
            if taken is not None:
                chosen.step, chosen.score = taken.checkpoint
        running = [trial for trial in self.trials if trial.status == "RUNNING"]
        self.most_running = max(self.most_running, len(running))
        if not running:
            over = suggested == "FINISHED" and all(map(FakeTrial.is_finished, self.trials))
            assert over or isinstance(suggested, dict), "the population stalls"
            return not over
        self.advance(self.order.choice(running))
        return True

    def advance(self, trial: FakeTrial) -> None:
        trial.step += 100
        trial.score += trial.config[RATE]
        result = report(step=trial.step, value=-trial.score, memorization=None).to_result()
        trial.last_result = result
        before = {each.trial_id: each.config for each in self.trials}
        if trial.step >= 900:
            trial.status = "TERMINATED"
            self.points.on_trial_complete(trial.trial_id, result=result)
            self.scheduler.on_trial_complete(self, trial, result)
            return
        decision = self.scheduler.on_trial_result(self, trial, result)
        changed = [each for each in self.trials if each.config is not before[each.trial_id]]
        self.exploits += [(each.trial_id, trial.step, dict(each.config)) for each in changed]
        assert (decision == "NOOP") == (trial in changed)
        if decision == "PAUSE":
            self.pauses += 1
            self._schedule_trial_save(trial, result)
            trial.status = "PAUSED"
        live = [each.step for each in self.trials if not each.is_finished()]
        self.spread = max(self.spread, max(live) - min(live))


RUNGS = range(100, 900, 100)


@pytest.mark.parametrize("concurrent", [1, 2, 5, 6])
def test_a_population_is_compared_at_one_rung_before_the_next(concurrent: int) -> None:
    """In whatever order trials report: even if the first could run to its end before others."""
    for order in range(5):
        found = FakeController(concurrent, order=order).run()
        assert len(found.trials) == 6
        assert found.most_running <= concurrent
        assert {trial.step for trial in found.trials} == {900}
        assert found.spread <= 100
        # A quarter of six, rounded up, takes over at each comparison.
        assert Counter(step for _, step, _ in found.exploits) == dict.fromkeys(RUNGS, 2)


def test_without_waiting_for_others_short_trials_hand_nothing_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: each runs as far as it can."""
    monkeypatch.setattr(Population, "_waits", lambda self, trial: False)
    assert FakeController(1).run().exploits == []


def test_nobody_waits_for_a_trial_that_ended() -> None:
    found = FakeController(2)
    while len(found.trials) < 6 or found.trials[5].status != "RUNNING":
        assert found.turn()
    lost = found.trials[5]
    lost.status = "ERROR"
    found.points.on_trial_complete(lost.trial_id, error=True)
    found.scheduler.on_trial_error(found, lost)
    found.run()
    assert [trial.step for trial in found.trials if trial is not lost] == [900] * 5


def test_a_clone_stays_on_its_donors_branch_and_in_its_ranges() -> None:
    found = FakeController(6).run()
    clips = Counter()
    for _, _, config in found.exploits:
        values = {name: config[name] for name in active(found.space, config)}
        assert (WARM in values) == (values[CLIP] is not None)
        assert values == within(found.space, values)
        search_file(space=SPACE).trial(values)
        clips[values[CLIP]] += 1
    assert clips


@pytest.mark.parametrize(
    ("name", "dimension", "message"),
    [
        ("hyperparameters.width", {"choice": [16, 32]}, "width can't change while a trial runs"),
        ("hyperparameters.dropuot", {"choice": [0.1]}, "did you mean 'hyperparameters.dropout'"),
        ("seed", {"int": [1, 2]}, "seed can't change"),
        ("data.epochs", {"int": [1, 2]}, "data.epochs can't change"),
        ("optimizer.name", {"choice": ["adamw"]}, "optimizer.name can't change"),
    ],
)
def test_what_may_not_change_is_refused_by_name(
    name: str, dimension: dict[str, Any], message: str
) -> None:
    file = search_file(searcher="pbt", space={name: dimension})
    with pytest.raises(UsageError) as caught:
        load_searcher("pbt").preview(file)
    assert message in str(caught.value)
    assert "hyperparameters.dropout" in str(caught.value) or not name.startswith("hyper")
