"""Population-based training of the search benchmark's trials, live: replays cannot change values.

The decisions are those of `govray.tune.pbt_scheduler`, whose class is told what Ray Tune would tell
it. All members train at once: the one furthest behind goes on, and among equals the one that waited
longest. A member that took over an earlier state would else go on alone.

Only the learning rate and the weight decay vary, since a member takes over another's weights and
plan. Width, initial scale and how often the restricted corpus is read are the middle ones of their
ranges for all.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

from benchmarks.search_curves import effect, mean_loss
from benchmarks.search_trials import DECAY, SCALE, Space, curve
from benchmarks.upsampling_trials import RATE, UPSAMPLING, WIDTH, Data, mean_exposure, sides
from govray.errors import CouldNotCheck
from govray.tune.objective import TrialReport, conclude, report
from govray.tune.pbt_scheduler import Population
from govray.tune.point_searcher import Points
from govray.tune.points import Point, draw
from govray.tune.recipe import METRIC


@dataclass(frozen=True)
class Ended:
    """How a population ended.

    Attributes:
        loss: Of its result, nats.
        memorization: M of it.
        exposure: Mean of the canaries ranked, bits.
        steps: Of all members together.
        exploits: How often a member took another one over.
    """

    loss: float
    memorization: float
    exposure: float
    steps: int
    exploits: int


class Member:
    """What Ray's class uses of a trial, and the model that it trains."""

    def __init__(self, name: str, config: Point, space: Space, data: Data, seed: int) -> None:
        self.trial_id, self.config = name, config
        self.status = "RUNNING"
        self.experiment_tag = ""
        self.turn = 0
        self.run_metadata = SimpleNamespace(checkpoint_manager=SimpleNamespace())
        self._steps = space.sizes.steps
        middle = {WIDTH: 16, SCALE: 1.0, UPSAMPLING: 3, RATE: 0.0, DECAY: 0.0}
        self._curve = curve(space, data, middle, seed)
        self._rows = [self._curve.next_rows() for _ in range(self._steps)]
        self._curve.next_rows = lambda: self._rows[self._curve.steps]
        self._curve.rate = lambda done: self.config[RATE] * (1 - done / self._steps)

    @property
    def steps(self) -> int:
        """Steps that its state has had."""
        return self._curve.steps

    @property
    def model(self) -> Any:
        """Its model."""
        return self._curve.model

    def train(self, steps: int) -> None:
        """Train with its own values."""
        self._curve.optimizer.param_groups[0]["weight_decay"] = self.config[DECAY]
        self._curve.train(steps)

    def state(self) -> Any:
        """All that another takes over, values not included."""
        state = (self._curve.model.state_dict(), self._curve.optimizer.state_dict())
        return copy.deepcopy((*state, self._curve.steps))

    def take_over(self, state: Any) -> None:
        """Go on from another's state."""
        model, optimizer, self._curve.steps = copy.deepcopy(state)
        self._curve.model.load_state_dict(model)
        self._curve.optimizer.load_state_dict(optimizer)

    def is_finished(self) -> bool:
        """Whether it ran to its end."""
        return self.status == "TERMINATED"

    def set_config(self, config: Point) -> None:
        """New values."""
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        """A name for people; unused here."""


class Controller:
    """Ray's loop around the scheduler: members in turn, from comparison to comparison.

    Args:
        space, data: Of the trials.
        seed: Of values, exploits and training.
        members: How many.
        interval: Steps between comparisons.
        tau: Limit of M.
    """

    def __init__(
        self, space: Space, data: Data, *, seed: int, members: int, interval: int, tau: float
    ) -> None:
        varied = {name: space.dimensions[name] for name in (RATE, DECAY)}
        points = Points(partial(draw, varied, seed), members, members)
        self._scheduler = Population(varied, interval, seed=seed, points=points)
        self._scheduler.set_search_properties(METRIC, "min")
        self._members = []
        for number in range(members):
            name = f"member {number}"
            self._members.append(Member(name, points.suggest(name), space, data, seed))
            self._scheduler.on_trial_add(self, self._members[-1])
        self._space, self._data, self._seed = space, data, seed
        self._interval, self._tau = interval, tau
        self._steps = self._exploits = 0
        self._last: dict[str, TrialReport] = {}

    def get_trials(self) -> list[Member]:
        """See Ray's controller."""
        return self._members

    def pause_trial(self, trial: Member, should_checkpoint: bool) -> None:
        """See Ray's controller."""
        trial.status = "PAUSED"

    def _schedule_trial_save(self, trial: Member, result: dict[str, Any]) -> Any:
        return trial.state()

    def run(self) -> Ended:
        """Train until all have ended.

        Raises:
            CouldNotCheck: No member ended within the limit.
        """
        while running := [each for each in self._members if not each.is_finished()]:
            self._advance(min(running, key=lambda each: (each.steps, each.turn)))
        best = conclude(self._last).best
        if best is None:
            raise CouldNotCheck("no member ended within the limit", do="Take another seed")
        member, said = self._members[int(best.split()[1])], self._last[best]
        ranked = islice(self._data.restricted, self._space.ranked)
        bits = mean_exposure(self._space.sizes, member.model, ranked, self._seed)
        m = math.nan if said.memorization is None else said.memorization
        return Ended(said.value, m, bits, self._steps, self._exploits)

    def _advance(self, member: Member) -> None:
        member.train(self._interval)
        self._steps += self._interval
        member.turn = self._steps
        said = self._measured(member)
        self._last[member.trial_id] = said
        if member.steps >= self._space.sizes.steps or not math.isfinite(said.value):
            member.status = "TERMINATED"
            return
        self._scheduler.on_trial_result(self, member, said.to_result())
        manager = vars(member.run_metadata.checkpoint_manager)
        taken = manager.pop("_latest_checkpoint_result", None)
        if taken is not None:
            member.take_over(taken.checkpoint)
            member.status = "RUNNING"
            self._exploits += 1

    def _measured(self, member: Member) -> TrialReport:
        measured = sides(self._data)
        value = mean_loss(member.model, measured.validation)
        m = math.nan
        if math.isfinite(value):
            m = effect(member.model, measured.read, measured.held_back)
        return report(step=member.steps, value=value, memorization=m, tau=self._tau)
