"""Population-based training: Ray Tune's scheduler, seeded, under a searcher, in any room.

Jaderberg et al., "Population based training of neural networks" (2017). At each interval a trial of
the lowest quarter takes over the state and the values of one of the best. Then it changes the
values a little. Ray's class decides who does, and these things differ here:

* The population comes from the search's own searcher, which records it; Ray's class accepts no
  searcher.
* Which of the best a trial takes over, and how values change, is drawn from the search's seed, the
  trial's number and its step. So equal reports in equal order lead to equal exploits.
* Every trial can be taken over, from its last comparison on. In Ray's class only those can that
  were among the best when they reported themselves. One that comes to be among the best because
  another ends or falls behind had nothing to give, and the exploit was left out. In the paper every
  member shares its weights.
* A trial is paused only where there is less room than trials. Then one that is ahead lets the one
  behind run, interval by interval, so that nobody waits for the whole of another. A pause costs a
  restart.

Invariant: values change on the donor's branch, in their ranges, and a choice of `OneOf` not at all.
The recipe refuses names that may not change.
Source: `PopulationBasedTraining` of Ray 2.60, whose private parts are used here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pbt import _PBTTrialState

from govray.tune.point_searcher import Points
from govray.tune.points import draw_one
from govray.tune.ray_space import domains, within
from govray.tune.recipe import INVALID, TIME
from govray.tune.space import Choice, Dimension, OneOf, active
from govray.tune.trial import ENDED

RESAMPLED = 0.25
"""How often a value is drawn anew instead of being changed a little; as in Ray's class."""

FACTORS = (0.8, 1.2)
"""What a number is multiplied by, one or the other."""


class Population(PopulationBasedTraining):
    """See the module. ``interval``: steps between comparisons. ``points``: the search's points; it
    counts who runs."""

    def __init__(
        self, space: Mapping[str, Dimension], interval: int, *, seed: int, points: Points
    ) -> None:
        super().__init__(
            time_attr=TIME,
            perturbation_interval=interval,
            hyperparam_mutations=domains(space),
            log_config=False,
        )
        self._space = space
        self._seed = seed
        self._points = points
        self._numbers: dict[str, int] = {}  # trials, in the order in which they were drawn

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._points.wake(trial.trial_id)
        self._numbers[trial.trial_id] = len(self._numbers)
        self._trial_state[trial] = _PBTTrialState(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Ray's decision, with a pause only if another trial is behind and waits."""
        if INVALID in result:
            return str(TrialScheduler.STOP)
        if ENDED in result:
            return str(TrialScheduler.CONTINUE)  # Ray ends it with its next result
        if int(result[TIME]) % int(self._perturbation_interval):
            return str(TrialScheduler.CONTINUE)  # a commit that no other trial may take over
        compared = self._trial_state[trial].last_perturbation_time
        decision = str(super().on_trial_result(tune_controller, trial, result))
        if self._trial_state[trial].last_perturbation_time == compared:
            return decision  # not compared this time
        behind = self._somebody_behind(tune_controller, trial)
        if behind:
            self._points.pause(trial.trial_id)
        if decision == TrialScheduler.NOOP:
            return decision  # it has taken over another's state, for which Ray has paused it
        return str(TrialScheduler.PAUSE if behind else TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """New trials first, then those that are furthest behind, as far as there is room."""
        trials = tune_controller.get_trials()
        pending = [trial for trial in trials if trial.status == Trial.PENDING]
        if pending:
            return self._furthest_behind(pending)
        running = sum(trial.status == Trial.RUNNING for trial in trials)
        paused = [trial for trial in trials if trial.status == Trial.PAUSED]
        if self._points.wanted:
            # Ray pauses a trial that takes another over: it goes on in the room that it had.
            paused = [trial for trial in paused if self._points.holds_room(trial.trial_id)]
        if not paused or running >= self._points.concurrent:
            return None
        chosen = self._furthest_behind(paused)
        self._points.wake(chosen.trial_id)
        return chosen

    def _furthest_behind(self, trials: list[Trial]) -> Trial:
        return min(
            trials,
            key=lambda trial: (
                self._trial_state[trial].last_train_time,
                self._numbers[trial.trial_id],
            ),
        )

    def _somebody_behind(self, tune_controller: Any, trial: Trial) -> bool:
        """Whether a trial that has done fewer steps, or is still to be drawn, lacks the room."""
        own = self._trial_state[trial].last_train_time
        others = [other for other in tune_controller.get_trials() if other is not trial]
        active = [each for each in others if each.status in (Trial.PENDING, Trial.RUNNING)]
        if len(active) + 1 < self._points.concurrent:
            return False
        paused = [each for each in others if each.status == Trial.PAUSED]
        return self._points.wanted or any(
            self._trial_state[each].last_train_time < own for each in paused
        )

    def _checkpoint_or_exploit(
        self,
        trial: Trial,
        tune_controller: Any,
        upper_quantile: list[Trial],
        lower_quantile: list[Trial],
    ) -> None:
        """As Ray's, which keeps the state of a trial of the best, and draws a donor from these."""
        donors = sorted(upper_quantile, key=lambda each: self._numbers[each.trial_id])
        if trial in lower_quantile:
            donors = [self._drawn(trial, "donor").choice(donors)]
        else:
            donors = [trial]  # its state is kept, for it may come to be among the best
        super()._checkpoint_or_exploit(trial, tune_controller, donors, lower_quantile)

    def _get_new_config(
        self, trial: Trial, trial_to_clone: Trial
    ) -> tuple[dict[str, Any], dict[str, str]]:
        config = dict(trial_to_clone.config)
        changed = {
            name: changed_a_little(dimension, config[name], self._drawn(trial, name))
            for name, dimension in active(self._space, config).items()
        }
        return within(self._space, {**config, **changed}), {}

    def _drawn(self, trial: Trial, what: str) -> random.Random:
        number, step = self._numbers[trial.trial_id], self._trial_state[trial].last_train_time
        return random.Random(f"{self._seed}/{number}/{step}/{what}")  # noqa: S311


def changed_a_little(dimension: Dimension, value: Any, random_: random.Random) -> Any:
    """A value near ``value``, or now and then any other of its range.

    A number is multiplied by one of `FACTORS`, and a whole one changes by 1 at least. A choice
    moves to the value before or behind it. What `OneOf` chose stays. The result may lie outside the
    range.
    """
    if isinstance(dimension, OneOf):
        return value
    if random_.random() < RESAMPLED:
        return draw_one(dimension, random_)
    up = random_.random() < 0.5
    if isinstance(dimension, Choice):
        place = dimension.choice.index(value) + (1 if up else -1)
        return dimension.choice[min(max(place, 0), len(dimension.choice) - 1)]
    moved = value * FACTORS[up]
    if isinstance(value, int) and round(moved) == value:
        return value + (1 if up else -1)
    return moved
