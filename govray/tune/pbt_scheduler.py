"""Population-based training as Ray Tune's scheduler does it, under a searcher, and without pauses.

Jaderberg et al., "Population based training of neural networks" (2017). At each interval a trial of
the lowest quarter takes over the state and the values of one of the best. Then it changes the
values a little. Ray's class decides, with Python's global generator; two things differ here:

* The population comes from the search's own searcher, which records it; Ray's class accepts no
  searcher.
* All trials run at once, so none is paused to let another catch up: a pause costs a restart.

Invariant: values change by ``optimizer.*`` alone; the recipe refuses other names.
Source: `PopulationBasedTraining` of Ray 2.60, whose private parts are used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pbt import _PBTTrialState

from govray.tune.ray_space import domains, within
from govray.tune.recipe import INVALID, TIME
from govray.tune.space import Dimension


class Population(PopulationBasedTraining):
    """See the module.

    Args:
        space: What may change, and its ranges.
        interval: Steps between comparisons.
    """

    def __init__(self, space: Mapping[str, Dimension], interval: int) -> None:
        super().__init__(
            time_attr=TIME,
            perturbation_interval=interval,
            hyperparam_mutations=domains(space),
            custom_explore_fn=partial(within, space),
            log_config=False,
        )

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A trial of the population, whose values are drawn."""
        self._trial_state[trial] = _PBTTrialState(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Ray's decision, without the pauses that let others catch up."""
        if INVALID in result:
            return str(TrialScheduler.STOP)
        decision = str(super().on_trial_result(tune_controller, trial, result))
        return str(TrialScheduler.CONTINUE) if decision == TrialScheduler.PAUSE else decision
