"""Successive halving as Ray Tune's scheduler: `govray.tune.successive_halving` decides, over the
governed order, and this class tells Ray.

A pause ends the trial's processes; it goes on from its last checkpoint. Ray keeps no scheduler's
state: the trials of a resumed search repeat their reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from govray.tune.point_searcher import Points, dealt, drawn_points
from govray.tune.recipe import INVALID, METRIC, TIME, Recipe
from govray.tune.search_config import SearchFile
from govray.tune.successive_halving import (
    Action,
    AsynchronousHalving,
    Bracket,
    HalvingState,
    TrialDecision,
)

CONTINUE, PAUSE, STOP = (
    str(TrialScheduler.CONTINUE),
    str(TrialScheduler.PAUSE),
    str(TrialScheduler.STOP),
)


def halving(file: SearchFile, concurrent: int, brackets: Sequence[Bracket], **how: bool) -> Recipe:
    """Deal ``max_trials`` random points, and halve them at each rung.
    ``how``: as `AsynchronousHalving`."""
    points = drawn_points(file, concurrent)
    machine = AsynchronousHalving(brackets, file.search.divisor, **how)
    return dealt(points, HalvingScheduler(machine, points))


class HalvingScheduler(TrialScheduler):
    """`AsynchronousHalving`, driven by Ray Tune's events.

    Args:
        machine: The search's state, still empty.
        points: The search's points; it counts who runs.

    Attributes:
        reasons: Trial to why it was last paused or stopped.
    """

    _supports_buffered_results = False

    def __init__(self, machine: AsynchronousHalving, points: Points) -> None:
        super().__init__()
        self.machine = machine
        self.reasons: dict[str, str] = {}
        self._points = points
        self._promoted: list[str] = []  # and not reported since

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        self._metric = metric
        return (metric, mode) == (METRIC, "min")

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._points.wake(trial.trial_id)
        self.machine.add(trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decide about the trial, and tell Ray what follows for others."""
        name = trial.trial_id
        if name in self._promoted:
            self._promoted.remove(name)
        if INVALID in result:
            self.reasons[name] = f"invalid: {result[INVALID]}"
            self._follow(tune_controller, name, self.machine.invalid(name))
            return STOP
        if TIME not in result or METRIC not in result:
            return CONTINUE
        decisions = self.machine.report(name, int(result[TIME]), float(result[METRIC]))
        own = self._follow(tune_controller, name, decisions)[0]
        if own.action is Action.PAUSE:
            self._points.pause(name)
        return {Action.CONTINUE: CONTINUE, Action.PAUSE: PAUSE, Action.STOP: STOP}[own.action]

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """The trial completed, by our decision or before it."""
        self._ended(tune_controller, trial.trial_id)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._ended(tune_controller, trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._ended(tune_controller, trial.trial_id)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """A promoted trial goes before a new one, as soon as there is room."""
        trials = {trial.trial_id: trial for trial in tune_controller.get_trials()}
        active = [t for t in trials.values() if t.status in (Trial.RUNNING, Trial.PENDING)]
        for name in self._promoted:
            # Ray asks again until the trial runs, and wants the same answer.
            if name in trials and trials[name].status == Trial.PENDING:
                return trials[name]
        if len(active) < self._points.concurrent:
            for name in self._promoted:
                if name in trials and trials[name].status == Trial.PAUSED:
                    return trials[name]
        return next((trial for trial in active if trial.status == Trial.PENDING), None)

    def debug_string(self) -> str:
        states = [trial.state for trial in self.machine.trials.values()]
        return "Halving: " + ", ".join(
            f"{states.count(state)} {state}" for state in HalvingState if state in states
        )

    def _ended(self, tune_controller: Any, name: str) -> None:
        if name in self._promoted:
            self._promoted.remove(name)
        if self.machine.trials[name].state in (HalvingState.RUNNING, HalvingState.PAUSED):
            self._follow(tune_controller, name, self.machine.died(name))

    def _follow(
        self, tune_controller: Any, about: str, decisions: Sequence[TrialDecision]
    ) -> list[TrialDecision]:
        found = list(decisions)
        if self._points.spent and not self.machine.closed:
            found += self.machine.close()
        trials = {trial.trial_id: trial for trial in tune_controller.get_trials()}
        for decision in found:
            self.reasons[decision.trial] = decision.reason
            if decision.trial == about or decision.trial not in trials:
                continue
            if decision.action is Action.RESUME:
                self._promoted.append(decision.trial)
                self._points.wake(decision.trial)
            elif decision.action is Action.STOP:
                tune_controller.stop_trial(trials[decision.trial])
        return found
