"""Population-based training: Ray Tune's scheduler, seeded, under a searcher, in any room.

Jaderberg et al., "Population based training of neural networks" (2017). At each interval a trial of
the lowest quarter takes over the state and the values of one of the best. Then it changes the
values a little. Ray's class decides who does, and these things differ here:

* The population comes from the search's own searcher, which records it; Ray's class accepts no
  searcher.
* Which of the best a trial takes over, and how values change, is drawn from the search's seed, the
  trial's number and its step. So equal reports in equal order lead to equal exploits.
* Trials are compared together, at one step, whatever the room: each waits, paused, until all that
  live have come as far. So short trials that run one after another still are a population. The
  last to arrive goes on in its room, and each other one costs a restart.

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
            synch=True,
        )
        self._space = space
        self._seed = seed
        self._points = points
        self._numbers: dict[str, int] = {}  # trials, in the order in which they were drawn
        self._gone: set[Trial] = set()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._points.wake(trial.trial_id)
        self._numbers[trial.trial_id] = len(self._numbers)
        self._trial_state[trial] = _PBTTrialState(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """A pause until all have come as far; then the comparison, in which Ray may pause it."""
        if INVALID in result:
            self._leave(tune_controller, trial)
            return str(TrialScheduler.STOP)
        if ENDED in result:
            return str(TrialScheduler.CONTINUE)  # Ray ends it with its next result
        step, state = int(result[TIME]), self._trial_state[trial]
        if step % int(self._perturbation_interval) or step <= state.last_perturbation_time:
            return str(TrialScheduler.CONTINUE)  # a commit that no other trial may take over
        self._save_trial_state(state, step, result, trial)
        self._compare(tune_controller)
        if trial.status != Trial.PAUSED and not self._waits(trial):
            return str(TrialScheduler.CONTINUE)
        self._points.pause(trial.trial_id)
        # One that has taken over another's state is paused by Ray already.
        return str(TrialScheduler.NOOP if trial.status == Trial.PAUSED else TrialScheduler.PAUSE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._leave(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._leave(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._leave(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """New trials first, then those that wait for nobody, as far as there is room."""
        trials = tune_controller.get_trials()
        if pending := [trial for trial in trials if trial.status == Trial.PENDING]:
            return self._furthest_behind(pending)
        self._compare(tune_controller)  # the last point may have been invalid
        running = sum(trial.status == Trial.RUNNING for trial in trials)
        ready = [t for t in trials if t.status == Trial.PAUSED and not self._waits(t)]
        if not ready or running >= self._points.concurrent:
            return None
        chosen = self._furthest_behind(ready)
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

    def _waits(self, trial: Trial) -> bool:
        """Whether it has come to a comparison, and others have not."""
        state = self._trial_state[trial]
        return bool(state.last_train_time > state.last_perturbation_time)

    def _leave(self, tune_controller: Any, trial: Trial) -> None:
        """A trial ends, so nobody waits for it."""
        self._gone.add(trial)
        self._compare(tune_controller)

    def _compare(self, tune_controller: Any) -> None:
        """Compare all that live, if all wait; the best first, since the others take from them."""
        trials = tune_controller.get_trials()
        living = [each for each in trials if each not in self._gone and not each.is_finished()]
        if not living or self._points.wanted or not all(map(self._waits, living)):
            return
        steps = {self._trial_state[each].last_train_time for each in living}
        if behind := [
            each for each in living if self._trial_state[each].last_train_time < max(steps)
        ]:
            # The search goes on after a stop: these were compared before, with the ones ahead.
            for each in behind:
                state = self._trial_state[each]
                state.last_perturbation_time = state.last_train_time
            return
        lower, upper = self._quantiles()
        for each in sorted(living, key=lambda each: each in lower):
            self._trial_state[each].last_perturbation_time = max(steps)
            self._checkpoint_or_exploit(each, tune_controller, upper, lower)

    def _checkpoint_or_exploit(
        self,
        trial: Trial,
        tune_controller: Any,
        upper_quantile: list[Trial],
        lower_quantile: list[Trial],
    ) -> None:
        """As Ray's, with a donor that is drawn from the search's seed."""
        if trial in lower_quantile:
            donors = sorted(upper_quantile, key=lambda each: self._numbers[each.trial_id])
            upper_quantile = [self._drawn(trial, "donor").choice(donors)]
        super()._checkpoint_or_exploit(trial, tune_controller, upper_quantile, lower_quantile)

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
