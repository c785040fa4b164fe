"""Ray Tune's loop around a recipe's searcher and scheduler, with results made up: no cluster."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ray.tune.schedulers import FIFOScheduler

from govray.tune.recipe import Recipe


class FakeTrial:
    def __init__(self, trial_id: str, config: Any = None) -> None:
        self.trial_id, self.config = trial_id, config
        self.status = "PENDING"
        self.step = 0
        self.last_result: dict[str, Any] = {}


Curve = Callable[[FakeTrial], "dict[str, Any] | None"]


class FakeController:
    """Ray's loop around a scheduler, one report at a time, in an order of its own."""

    def __init__(self, recipe: Recipe, curve: Curve, seed: int = 0, width: int = 2) -> None:
        config = recipe.tune_config
        self.scheduler = config.scheduler or FIFOScheduler()
        self.points = config.search_alg
        self.scheduler.set_search_properties(config.metric, config.mode)
        self.curve, self.width = curve, width
        self.order = random.Random(seed)
        self.trials: list[FakeTrial] = []
        self.reports = 0
        self.most_active = 0

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    def stop_trial(self, trial: FakeTrial) -> None:
        if trial.status in ("TERMINATED", "ERROR"):
            return
        if trial.status == "RUNNING":
            self.scheduler.on_trial_complete(self, trial, trial.last_result)
            self.points.on_trial_complete(trial.trial_id, result=trial.last_result)
        else:
            self.scheduler.on_trial_remove(self, trial)
            self.points.on_trial_complete(trial.trial_id)
        trial.status = "TERMINATED"

    def active(self) -> list[FakeTrial]:
        return [each for each in self.trials if each.status == "RUNNING"]

    def step(self) -> bool:
        """One turn; False once the search is over."""
        name = f"t{len(self.trials)}"
        suggested = self.points.suggest(name)
        if isinstance(suggested, dict):
            trial = FakeTrial(name, suggested)
            self.trials.append(trial)
            self.scheduler.on_trial_add(self, trial)
        chosen = self.scheduler.choose_trial_to_run(self)
        if chosen is not None:
            assert self.scheduler.choose_trial_to_run(self) is chosen
            chosen.status = "PENDING"
            assert self.scheduler.choose_trial_to_run(self) is chosen
        for trial in self.trials:
            if trial.status == "PENDING":
                trial.status = "RUNNING"
        running = self.active()
        self.most_active = max(self.most_active, len(running))
        if not running:
            over = suggested == "FINISHED"
            assert over or isinstance(suggested, dict), "the search stalls"
            assert not over or all(t.status in ("TERMINATED", "ERROR") for t in self.trials)
            return not over
        self.advance(self.order.choice(running))
        return True

    def advance(self, trial: FakeTrial) -> None:
        result = self.curve(trial)
        self.reports += 1
        if result is None:
            self.scheduler.on_trial_error(self, trial)
            self.points.on_trial_complete(trial.trial_id, error=True)
            trial.status = "ERROR"
            return
        trial.last_result = result
        over = "done" in result
        decision = "STOP" if over else self.scheduler.on_trial_result(self, trial, result)
        if decision == "STOP":
            self.stop_trial(trial)
        elif decision == "PAUSE":
            trial.status = "PAUSED"

    def run(self, turns: int = 100_000) -> FakeController:
        for _ in range(turns):
            if not self.step():
                return self
        raise AssertionError("the search does not end")
