"""Adapters that a step does not train: out of sight, and out of harm's way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from govray.engine.batch import StepBatch
from govray.engine.model.adapters import Adapters
from govray.engine.model.gpt import GPT, loss
from govray.engine.step import GovernedStep
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.ranks import RankPool

CONTEXT, VOCABULARY = 8, 13


class Watched(torch.optim.AdamW):
    """AdamW that notes which parameter groups it sees when it steps."""

    def step(self, closure=None):
        self.seen = [len(group["params"]) for group in self.param_groups]
        return super().step(closure)


class Case:
    """A small run with many adapters, in one parameter group each, or all in one."""

    def __init__(self, adapters: int, *, one_group: bool = False) -> None:
        torch.manual_seed(3)
        self.model = GPT(2, 16, CONTEXT, VOCABULARY)
        names = [f"c{i:02d}" for i in range(adapters)]
        self.adapters = Adapters(self.model, dict.fromkeys(names, 2), seed=1)
        self.own = dict(self.adapters.named_parameters())
        self.optimizer = Watched(self.model.parameters(), lr=1e-2, weight_decay=0.5)
        groups = [[self.own[n] for n in names] for names in self.adapters.groups.values()]
        for params in [[*self.own.values()]] if one_group else groups:
            self.optimizer.add_param_group({"params": params})
        self.everything = allow_all(self.model)
        self.routes = [Route({}, name, 2) for name in names]
        self.run: GovernedStep = governed(
            self.model, self.optimizer, [self.everything, *self.routes], adapters=self.adapters
        )

    def batch(self, step: int, due: Sequence[int] = (), trunk: bool = True) -> StepBatch:
        routes = [*([self.everything] if trunk else []), *(self.routes[i] for i in due)]
        rows = [token_rows(2, CONTEXT, VOCABULARY, step, i) for i in range(len(routes))]
        return step_batch(step, [micro_batch(r, t) for r, t in zip(routes, rows, strict=True)])

    def weights(self) -> dict[str, Tensor]:
        named = dict(self.model.named_parameters()) | self.own
        return {name: parameter.detach().clone() for name, parameter in named.items()}


def test_the_optimizer_sees_what_the_step_trains() -> None:
    case = Case(20)
    groups = case.optimizer.param_groups
    base, each = len(groups[0]["params"]), len(groups[1]["params"])
    for step, due in enumerate([(), (3, 7), ()]):
        case.run(case.batch(step, due), loss)
        assert case.optimizer.seen == [base, *[each] * len(due)]
        assert case.optimizer.param_groups is groups
    case.run(case.batch(3, (5,), trunk=False), loss)
    assert case.optimizer.seen == [base, each]  # the base's stays in sight


def test_optimizer_view_change_no_bit() -> None:
    few, many = Case(2), Case(20)
    for step in range(3):
        for case in (few, many):
            case.run(case.batch(step, (1,) if step == 1 else ()), loss)
    mine, theirs = few.weights(), many.weights()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    first = Case(20).weights()
    others = [name for name in theirs if name.startswith("adapter:") and ":c01/" not in name]
    assert others
    assert all(torch.equal(theirs[name], first[name]) for name in others)
    assert not any(many.optimizer.state.get(many.own[name]) for name in others)


@pytest.mark.parametrize("one_group", [False, True])
def test_a_gradient_that_the_step_does_not_own_moves_nothing(one_group: bool) -> None:
    case, plain = Case(4, one_group=one_group), Case(4, one_group=one_group)
    for parameter in (*case.own.values(), *case.model.parameters()):
        parameter.grad = torch.ones_like(parameter)
    for step, due in enumerate([(0,), (), (2,)]):
        for each in (case, plain):
            each.run(each.batch(step, due), loss)
    mine, theirs = case.weights(), plain.weights()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_without_the_engine_such_a_gradient_would_move_an_adapter() -> None:
    """The control: it is there, and the optimizer would apply it."""
    case = Case(2)
    before = case.weights()
    for parameter in case.own.values():
        parameter.grad = torch.ones_like(parameter)
    case.optimizer.step()
    assert any(not torch.equal(p, before[n]) for n, p in case.own.items())


def on_a_rank(stale: bool) -> dict[str, Tensor]:
    """Rank 0 alone has rows of adapter 1; rank 1 holds a gradient of its own there."""
    case = Case(3)
    if stale and dist.get_rank() == 1:
        for name, parameter in case.own.items():
            if ":c01/" in name:
                parameter.grad = torch.ones_like(parameter)
    case.run(case.batch(0, (1,) if dist.get_rank() == 0 else ()), loss)
    return case.weights()


def test_a_stale_gradient_on_a_rank_without_rows_is_not_sent(two_ranks: RankPool) -> None:
    right = two_ranks.run(on_a_rank, False)[0]
    for found in two_ranks.run(on_a_rank, True):
        assert all(torch.equal(found[name], right[name]) for name in right)
