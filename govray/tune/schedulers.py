"""Successive halving as Ray Tune's schedulers, over the governed order.

`GovernedASHA` is Ray's own asynchronous scheduler with another cutoff. A trial goes on if its rank
is among the best one in ``divisor``, counting itself, and first among ties. Ray's cutoff
interpolates between two results, so a map that keeps their order may change its decisions. A rank
does not change. A search without a limit of memorization uses Ray's class itself.

`PromotionScheduler` pauses trials at rungs and promotes them later:
`govray.tune.successive_halving` decides, and this class tells Ray. A pause ends the trial's
processes; it goes on from its last checkpoint.

Invariants:

* Both decide by rank alone, so no scale of the metric changes a decision.
* A trial whose objective is not finite does not go on.

Ray keeps no scheduler's state: the trials of a resumed search repeat their reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from govray.tune.brackets import Bracket, places
from govray.tune.point_searcher import Points
from govray.tune.recipe import INVALID, METRIC, TIME
from govray.tune.successive_halving import Action, AsynchronousHalving, HalvingState, TrialDecision

CONTINUE, PAUSE, STOP = (
    str(TrialScheduler.CONTINUE),
    str(TrialScheduler.PAUSE),
    str(TrialScheduler.STOP),
)


class GovernedASHA(AsyncHyperBandScheduler):
    """Ray's ASHA with ranks instead of percentiles, over given brackets.

    Args:
        brackets: Rungs and trials of each bracket, the first to be filled first.
        divisor: One trial in this many goes on.

    Attributes:
        reasons: Trial to why it was stopped.
    """

    def __init__(self, brackets: Sequence[Bracket], divisor: int) -> None:
        longest = max(bracket.rungs[-1] for bracket in brackets)
        super().__init__(time_attr=TIME, max_t=longest, reduction_factor=divisor)
        self._ladders = [_Ladder(bracket, divisor) for bracket in brackets]
        self._brackets = list(self._ladders)
        self.reasons: dict[str, str] = {}

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Put the trial into the first bracket that has room."""
        ladder = next((each for each in self._ladders if each.places > 0), self._ladders[0])
        ladder.places -= 1
        self._trial_info[trial.trial_id] = ladder

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Ray's decision by our cutoff, with its reason."""
        name = trial.trial_id
        if INVALID in result:
            self.reasons[name] = f"invalid: {result[INVALID]}"
            return STOP
        action = str(super().on_trial_result(tune_controller, trial, result))
        if action == STOP:
            self.reasons[name] = (
                f"ran to the last rung, at step {result[TIME]}"
                if result[TIME] >= self._max_t
                else self._trial_info[name].standing
            )
        return action

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Does nothing: every result was seen already."""

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Its reports stay counted."""


class _Ladder(_Bracket):
    """One bracket: Ray's bookkeeping, our rungs and cutoff."""

    def __init__(self, bracket: Bracket, divisor: int) -> None:
        super().__init__(bracket.rungs[0], bracket.rungs[-1], divisor, 0)
        # Ray goes through rungs from the last.
        self._rungs = [(step, {}) for step in reversed(bracket.rungs)]
        self._divisor = divisor
        self.places = bracket.trials
        self.standing = ""

    def cutoff(self, recorded: dict[str, float]) -> float | None:
        """The least reward that goes on, of those at the rung before this trial; None for any."""
        going_on = places(len(recorded) + 1, self._divisor)
        best = sorted(recorded.values(), reverse=True)
        return best[going_on - 1] if len(best) >= going_on else None

    def on_result(self, trial: Trial, cur_iter: int, cur_rew: float | None) -> str:
        """As Ray's, but a trial that cannot be judged is recorded and stops."""
        assert cur_rew is not None  # every result has the objective
        action = str(super().on_result(trial, cur_iter, cur_rew))
        reached = next((rung for rung in self._rungs if cur_iter >= rung[0]), None)
        if not math.isfinite(cur_rew):
            self.standing = "its objective is no finite number"
            return STOP
        if reached and action == STOP:
            ahead = sum(reward > cur_rew for reward in reached[1].values())
            self.standing = f"place {ahead + 1} of {len(reached[1])} at step {reached[0]}"
        return action


class PromotionScheduler(TrialScheduler):
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
        return "Promotion: " + ", ".join(
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
