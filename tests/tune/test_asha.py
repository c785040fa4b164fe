"""Promotion: nothing stalls and nothing counts twice, whatever order events come in."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from govray.tune.successive_halving import (
    Action,
    AsynchronousHalving,
    Bracket,
    HalvingState,
    TrialDecision,
    adaptive,
)

ONE = (Bracket((1, 3, 9), 9),)


def actions(decisions: tuple[TrialDecision, ...]) -> dict[str, str]:
    assert len({each.trial for each in decisions}) == len(decisions)
    return {each.trial: each.action.value for each in decisions}


def test_the_rule_on_one_rung() -> None:
    machine = AsynchronousHalving(ONE, 3)
    assert actions(machine.report("a", 1, 5.0)) == {"a": "continue"}  # 0 < max(1 // 3, 1)
    assert actions(machine.report("b", 1, 6.0)) == {"b": "pause"}
    assert actions(machine.report("c", 1, 7.0)) == {"c": "pause"}
    assert actions(machine.report("d", 1, 5.0)) == {"d": "continue"}  # ahead of its equal
    assert actions(machine.report("e", 1, 9.0)) == {"e": "pause"}
    assert actions(machine.report("f", 1, 9.0)) == {"f": "pause"}  # 2 places: a and d have them
    assert machine.report("f", 1, 0.0)[0].action is Action.PAUSE  # a second report is no news
    assert len(machine.rungs[0][0].entries) == 6


def test_a_paused_trial_goes_on_when_the_rung_has_room() -> None:
    machine = AsynchronousHalving(ONE, 2)
    machine.report("a", 1, 1.0)
    assert actions(machine.report("b", 1, 2.0)) == {"b": "pause"}
    assert actions(machine.report("c", 1, 3.0)) == {"c": "pause"}
    assert actions(machine.report("d", 1, 4.0)) == {"d": "pause", "b": "resume"}
    assert actions(machine.report("b", 3, 2.0)) == {"b": "continue"}
    assert machine.trials["b"].rung == 2


def test_the_dead_give_their_place_to_the_living() -> None:
    machine = AsynchronousHalving((Bracket((1, 9), 3),), 4)
    machine.report("a", 1, 1.0)
    machine.report("b", 1, 2.0)
    assert actions(machine.report("c", 1, 3.0)) == {"c": "pause"}
    assert actions(machine.died("a")) == {"b": "resume"}
    assert actions(machine.died("b")) == {"c": "resume"}
    assert machine.died("c") == ()


def run_out(
    machine: AsynchronousHalving, objective: dict[str, float], seed: int = 0
) -> Counter[int]:
    """Run all trials to their end, one report at each step of a rung; where they ended."""
    order, ended = random.Random(seed), Counter[int]()
    running = sorted(objective)
    for name in running:
        machine.add(name)
    machine.close()
    while running:
        name = running.pop(order.randrange(len(running)))
        trial = machine.trials[name]
        step = machine.brackets[trial.bracket].rungs[trial.rung]
        for decision in machine.report(name, step, objective[name]):
            if decision.action in (Action.CONTINUE, Action.RESUME):
                running.append(decision.trial)
    assert machine.done
    for trial in machine.trials.values():
        ended[trial.step] += 1
    return ended


@pytest.mark.parametrize("seed", range(5))
def test_when_all_wait_for_all_the_issue_s_preview_comes_out_exactly(seed: int) -> None:
    found = adaptive(max_trials=10, max_time=900, divisor=3, max_rungs=5, mode="standard")
    objective = {f"t{i}": random.Random(seed * 100 + i).random() for i in range(10)}
    machine = AsynchronousHalving(found, 3, synchronous=True)
    assert run_out(machine, objective, seed) == {100: 5, 300: 3, 900: 2}


def test_a_scale_changes_no_decision() -> None:
    values = {f"t{i}": random.Random(i).random() for i in range(9)}
    traces = []
    for scale in (1.0, 1e-30, 1e30):
        machine = AsynchronousHalving(ONE, 3)
        run_out(machine, {name: scale * value for name, value in values.items()})
        traces.append({name: (t.step, t.state) for name, t in machine.trials.items()})
    assert traces[0] == traces[1] == traces[2]


class AnySearch(RuleBasedStateMachine):
    """Trials report twice, skip rungs, die, turn out invalid, in any order."""

    @initialize(
        sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        divisor=st.integers(2, 4),
        synchronous=st.booleans(),
    )
    def start(self, sizes: list[int], divisor: int, synchronous: bool) -> None:
        brackets = [Bracket((1, 2, 4, 8)[i:], trials) for i, trials in enumerate(sizes)]
        self.machine = AsynchronousHalving(brackets, divisor, synchronous=synchronous)
        self.replayed = AsynchronousHalving(brackets, divisor, synchronous=synchronous)
        self.told: dict[str, Action] = {}  # the last decision that each trial was told
        self.left = sum(sizes)
        self.named = 0

    def heard(
        self, decisions: tuple[TrialDecision, ...], repeated: tuple[TrialDecision, ...]
    ) -> None:
        assert decisions == repeated
        assert len({each.trial for each in decisions}) == len(decisions)
        for each in decisions:
            if each.action is Action.RESUME:
                assert self.told[each.trial] is Action.PAUSE
            self.told[each.trial] = each.action

    @precondition(lambda self: self.left > 0)
    @rule()
    def add(self) -> None:
        name = f"t{self.named}"
        self.named, self.left = self.named + 1, self.left - 1
        self.machine.add(name)
        self.replayed.add(name)
        self.told[name] = Action.CONTINUE
        if self.left == 0:
            self.heard(self.machine.close(), self.replayed.close())

    @precondition(lambda self: self.named > 0)
    @rule(
        data=st.data(),
        step=st.sampled_from([0, 1, 1, 2, 3, 4, 8]),
        objective=st.integers(0, 5).map(float) | st.sampled_from([math.nan, math.inf]),
    )
    def report(self, data: st.DataObject, step: int, objective: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.told)))
        before = self.machine.trials[name].state
        found = self.machine.report(name, step, objective)
        assert found[0].trial == name
        if before is HalvingState.PAUSED:
            assert found == (TrialDecision(name, Action.PAUSE, "waits at its rung"),)
        elif before is not HalvingState.RUNNING:
            assert len(found) == 1
            assert found[0].action is Action.STOP
        self.heard(found, self.replayed.report(name, step, objective))

    @precondition(lambda self: self.named > 0)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.told)))
        self.heard(self.machine.died(name), self.replayed.died(name))

    @precondition(lambda self: self.named > 0)
    @rule(data=st.data(), replace=st.booleans())
    def turn_out_invalid(self, data: st.DataObject, replace: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.told)))
        self.heard(self.machine.invalid(name), self.replayed.invalid(name))

    @invariant()
    def nobody_counts_twice_and_entries_are_in_order(self) -> None:
        for bracket in self.machine.rungs:
            for rung in bracket:
                names = [name for _, name in rung.entries]
                assert len(set(names)) == len(names)
                assert [o for o, _ in rung.entries] == sorted(o for o, _ in rung.entries)
                assert rung.promoted <= set(names)
                for name in names:
                    assert self.machine.trials[name].state is not HalvingState.INVALID

    @invariant()
    def a_rung_s_trials_went_on_from_the_one_below(self) -> None:
        for bracket in self.machine.rungs:
            for below, rung in itertools.pairwise(bracket):
                for _, name in rung.entries:
                    assert name in below.promoted

    @invariant()
    def everybody_knows_what_the_machine_thinks(self) -> None:
        said = {
            Action.CONTINUE: HalvingState.RUNNING,
            Action.RESUME: HalvingState.RUNNING,
            Action.PAUSE: HalvingState.PAUSED,
            Action.STOP: HalvingState.STOPPED,
        }
        for name, trial in self.machine.trials.items():
            if trial.state not in (HalvingState.DIED, HalvingState.INVALID):
                assert said[self.told[name]] is trial.state

    @invariant()
    def nothing_stalls(self) -> None:
        states = Counter(each.state for each in self.machine.trials.values())
        if self.left == 0 and not states[HalvingState.RUNNING]:
            assert states[HalvingState.PAUSED] == 0
            assert self.machine.done


AnySearch.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAnySearch = AnySearch.TestCase
