"""Successive halving as a state machine: events in, decisions out. No clock, no Ray.

A trial that reaches a rung goes on if it is among the best one in ``divisor`` so far. It counts
itself, and is first among ties. Otherwise it pauses. It goes on later if more trials put it among
the best, or if one that went on instead has died. Paused trials stop when no trial of their bracket
runs any more.

With ``synchronous`` no trial goes on before all trials have reached the rung: Hyperband. With
``stopping`` a trial that would pause stops. It also stops at any report that is not finite.

Decisions go by rank alone, so no map that keeps the order changes one. (Ray's own cutoff
interpolates between two results.)

Invariants, whatever order events come in:

* A trial counts once at a rung, with its first report there, however often it reports.
* A trial that died counts as the worst at its next rung, and takes no place from a living one. With
  ``stopping`` it counts no further, as none waits for it.
* A trial with invalid hyperparameters counts nowhere, and frees its place in the bracket.
* A trial whose objective is infinite or NaN does not go on.
* When all trials have been added (`close`) and none runs, none is paused: nothing stalls.

Two machines that see the same events make the same decisions, so a search resumes by replaying its
record.

A bracket is a series of rungs, in steps. One with few rungs starts high, which favours trials that
start slowly; so a search may have several. The arithmetic is integer or rational: a logarithm in
floats can be off by one.

Source: Li et al., "A system for massively parallel hyperparameter tuning" (2020), algorithm 2.
Counting and ties, and the formulas for rungs and brackets, are those of Determined AI's ASHA.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Literal

Mode = Literal["aggressive", "standard", "conservative"]


@dataclass(frozen=True)
class Bracket:
    """One bracket. ``rungs``: steps at which its trials are compared, rising. They end at the
    last."""

    rungs: tuple[int, ...]
    trials: int


def adaptive(
    *, max_trials: int, max_time: int, divisor: int, max_rungs: int, mode: Mode
) -> tuple[Bracket, ...]:
    """The brackets of a search, the one with most rungs first."""
    lengths = bracket_lengths(longest(max_rungs, divisor, max_time, max_trials), mode)
    counts = trials_per_bracket(max_trials, divisor, lengths)
    return tuple(
        Bracket(rungs(length, divisor, max_time), count)
        for length, count in zip(lengths, counts, strict=True)
    )


def longest(max_rungs: int, divisor: int, max_time: int, max_trials: int) -> int:
    """How many rungs the longest bracket has: no more than time and trials fill."""
    return min(max_rungs, floor_log(divisor, max_time) + 1, floor_log(divisor, max_trials) + 1)


def bracket_lengths(most: int, mode: Mode) -> tuple[int, ...]:
    """How many rungs each bracket has, the longest first."""
    least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
    return tuple(range(most, least - 1, -1))


def trials_per_bracket(max_trials: int, divisor: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Share out trials by weight divisor^(r - 1) / r. The first bracket takes the remainder."""
    weights = [Fraction(divisor ** (length - 1), length) for length in lengths]
    counts = [int(max_trials * weight / sum(weights)) for weight in weights]
    counts[0] += max_trials - sum(counts)
    return tuple(counts)


def rungs(count: int, divisor: int, max_time: int) -> tuple[int, ...]:
    """The steps of ``count`` rungs, rising to ``max_time``."""
    return tuple(max(max_time // divisor ** (count - 1 - i), 1) for i in range(count))


def floor_log(base: int, n: int) -> int:
    """The largest k with base^k <= n; ``base`` is 2 or more, ``n`` 1 or more."""
    k = 0
    while base ** (k + 1) <= n:
        k += 1
    return k


def places(count: int, divisor: int) -> int:
    """How many of ``count`` trials at a rung go on."""
    return max(count // divisor, 1)


class Action(StrEnum):
    CONTINUE = "continue"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


@dataclass(frozen=True)
class TrialDecision:
    trial: str
    action: Action
    reason: str


class HalvingState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DIED = "died"
    INVALID = "invalid"


@dataclass
class RungTrial:
    bracket: int
    rung: int = 0
    state: HalvingState = HalvingState.RUNNING
    step: int = 0
    objective: float = math.inf


@dataclass
class Rung:
    """The trials that were counted at one rung. ``entries`` is sorted by objective, the newest of
    ties first. Trials that died are at the end."""

    entries: list[tuple[float, str]] = field(default_factory=list)
    promoted: set[str] = field(default_factory=set)

    def insert(self, objective: float, trial: str) -> int:
        """Count a trial, and return its index among all, first among ties."""
        index = bisect_left(self.entries, objective, key=lambda entry: entry[0])
        self.entries.insert(index, (objective, trial))
        return index

    def remove(self, trial: str) -> None:
        self.entries = [entry for entry in self.entries if entry[1] != trial]
        self.promoted.discard(trial)


class AsynchronousHalving:
    """The state of one search; see the module.

    Args:
        brackets: Rungs and trials of each bracket, the first to be filled first.
        divisor: One trial in this many goes on.
        synchronous: Wait for all trials of a rung before any goes on.
        stopping: Stop what would wait.
    """

    def __init__(
        self,
        brackets: Sequence[Bracket],
        divisor: int,
        *,
        synchronous: bool = False,
        stopping: bool = False,
    ) -> None:
        self.brackets = tuple(brackets)
        self.divisor = divisor
        self.synchronous = synchronous
        self.stopping = stopping
        self.trials: dict[str, RungTrial] = {}
        self._valid = [0] * len(self.brackets)  # trials of each that are not INVALID
        self.rungs = [[Rung() for _ in bracket.rungs] for bracket in self.brackets]
        self.closed = False

    @property
    def done(self) -> bool:
        """Whether no trial runs or waits, and none will be added."""
        waiting = (HalvingState.RUNNING, HalvingState.PAUSED)
        return self.closed and all(each.state not in waiting for each in self.trials.values())

    def add(self, trial: str) -> int:
        """A new trial starts. Returns its bracket: the first with a free place, else the first."""
        if trial in self.trials:
            return self.trials[trial].bracket
        free = [i for i, each in enumerate(self.brackets) if self._valid[i] < each.trials]
        bracket = free[0] if free else 0
        self.trials[trial] = RungTrial(bracket)
        self._valid[bracket] += 1
        return bracket

    def close(self) -> tuple[TrialDecision, ...]:
        """No more trials will be added."""
        self.closed = True
        return tuple(d for i in range(len(self.brackets)) for d in self._settle(i))

    def report(self, trial: str, step: int, objective: float) -> tuple[TrialDecision, ...]:
        """A trial reports; the first decision is always about itself. ``objective``: less is
        better."""
        self.add(trial)
        found = self.trials[trial]
        if found.state is HalvingState.PAUSED:
            return (TrialDecision(trial, Action.PAUSE, "waits at its rung"),)
        if found.state is not HalvingState.RUNNING:
            return (TrialDecision(trial, Action.STOP, f"is {found.state} already"),)
        found.step, found.objective = step, math.inf if math.isnan(objective) else objective
        own = self._climb(trial)
        lost = not math.isfinite(found.objective)
        if self.stopping and (
            own.action is Action.PAUSE or (lost and own.action is not Action.STOP)
        ):
            own = self._stop(trial, "its objective is no finite number" if lost else own.reason)
        others = self._settle(found.bracket)
        # A later decision about the trial itself replaces the first.
        final = [each for each in others if each.trial == trial]
        if final:
            own = final[-1]
            if own.action is Action.RESUME:
                own = TrialDecision(trial, Action.CONTINUE, own.reason)
        return (own, *(each for each in others if each.trial != trial))

    def died(self, trial: str) -> tuple[TrialDecision, ...]:
        """A trial failed, or ended before its last rung."""
        found = self.trials.get(trial)
        if found is None or found.state not in (HalvingState.RUNNING, HalvingState.PAUSED):
            return ()
        if found.state is HalvingState.RUNNING and not self.stopping:
            self._rung(found).entries.append((math.inf, trial))
        found.state = HalvingState.DIED
        return self._settle(found.bracket)

    def invalid(self, trial: str) -> tuple[TrialDecision, ...]:
        found = self.trials.get(trial)
        if found is None or found.state not in (HalvingState.RUNNING, HalvingState.PAUSED):
            return ()
        found.state = HalvingState.INVALID
        self._valid[found.bracket] -= 1
        for rung in self.rungs[found.bracket]:
            rung.remove(trial)
        return self._settle(found.bracket)

    def _rung(self, trial: RungTrial) -> Rung:
        return self.rungs[trial.bracket][trial.rung]

    def _stop(self, name: str, reason: str) -> TrialDecision:
        self.trials[name].state = HalvingState.STOPPED
        return TrialDecision(name, Action.STOP, reason)

    def _climb(self, name: str) -> TrialDecision:
        """While a running trial goes on, count it at each rung that its last report has reached."""
        trial = self.trials[name]
        steps = self.brackets[trial.bracket].rungs
        reason = f"on the way to step {steps[trial.rung]}"
        while trial.step >= steps[trial.rung]:
            rung, here = self._rung(trial), f"at step {steps[trial.rung]}"
            index = rung.insert(trial.objective, name)
            if trial.rung == len(steps) - 1:
                return self._stop(name, f"ran to the last rung, {here}")
            count = len(rung.entries)
            standing = f"place {index + 1} of {count} {here}"
            if (
                self.synchronous
                or not math.isfinite(trial.objective)
                or index >= places(count, self.divisor)
            ):
                trial.state = HalvingState.PAUSED
                return TrialDecision(name, Action.PAUSE, standing)
            rung.promoted.add(name)
            trial.rung += 1
            reason = standing
        return TrialDecision(name, Action.CONTINUE, reason)

    def _settle(self, bracket: int) -> tuple[TrialDecision, ...]:
        """Promote and stop what the rungs of a bracket now allow, from the lowest up."""
        decisions = []
        for level in range(len(self.rungs[bracket]) - 1):
            decisions += self._promote(bracket, level, self._complete(bracket, level))
        if self._complete(bracket, len(self.rungs[bracket]) - 1):
            for name, trial in self.trials.items():
                if trial.bracket == bracket and trial.state is HalvingState.PAUSED:
                    here = f"at step {self.brackets[bracket].rungs[trial.rung]}"
                    reason = f"not among the best 1 in {self.divisor} {here}"
                    decisions.append(self._stop(name, reason))
        return tuple(decisions)

    def _complete(self, bracket: int, level: int) -> bool:
        """Whether no trial is on the way to the rung, or to one below it."""
        full = self.closed or self._valid[bracket] >= self.brackets[bracket].trials
        return full and not any(
            each.bracket == bracket and each.rung <= level and each.state is HalvingState.RUNNING
            for each in self.trials.values()
        )

    def _promote(self, bracket: int, level: int, complete: bool) -> list[TrialDecision]:
        rung = self.rungs[bracket][level]
        if self.synchronous and not complete:
            return []
        count = len(rung.entries)
        here = f"at step {self.brackets[bracket].rungs[level]}"
        # The first to arrive goes on alone. So the one place of a small rung is taken, unless its
        # trial died.
        open_places = places(count, self.divisor) if complete else count // self.divisor
        living = [
            name
            for objective, name in rung.entries
            if math.isfinite(objective) and self.trials[name].state is not HalvingState.DIED
        ]
        decisions = []
        for place, name in enumerate(living[:open_places]):
            trial = self.trials[name]
            if name in rung.promoted or trial.state is not HalvingState.PAUSED:
                continue
            rung.promoted.add(name)
            trial.rung += 1
            trial.state = HalvingState.RUNNING
            own = self._climb(name)
            if own.action is Action.CONTINUE:
                reason = f"place {place + 1} of {count} {here}"
                decisions.append(TrialDecision(name, Action.RESUME, reason))
            elif own.action is Action.STOP:
                decisions.append(own)
        return decisions
