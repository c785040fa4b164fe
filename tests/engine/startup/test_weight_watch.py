"""Nothing but the optimizer's own step writes a weight or a buffer, at any step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from govray.engine.model.gpt import GPT, loss
from govray.engine.startup.weight_watch import WeightWatch
from govray.errors import Refused
from govray.governance.policy.route import Route
from tests.support.cases import allow_all, governed, micro_batch, step_batch, token_rows
from tests.support.table import each_row

CONTEXT, VOCABULARY = 6, 13
UPPER = Route(dict.fromkeys(["block.1", "final_norm", "head"], 1.0))
BEGINS = 10

Put = Callable[[GPT, torch.optim.Optimizer, "Clock"], None]


class Clock:
    step = 0

    @property
    def late(self) -> bool:
        return self.step >= BEGINS


def train(put: Put, steps: int = 18, second: Route | None = UPPER) -> None:
    torch.manual_seed(0)
    model, clock = GPT(2, 8, CONTEXT, VOCABULARY, heads=2), Clock()
    model.register_buffer("scale", torch.ones(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    put(model, optimizer, clock)
    everything = allow_all(model)
    routes = [everything, second or everything]
    run = governed(model, optimizer, list(dict.fromkeys(routes)))
    for clock.step in range(steps):
        route = routes[clock.step % 2]
        tokens = token_rows(2, CONTEXT, VOCABULARY, clock.step)
        run(step_batch(clock.step, [micro_batch(route, tokens)]), loss)


def post(act: Callable[[GPT], object], late: bool = True) -> Put:
    def put(model: GPT, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        @torch.no_grad()
        def hook(*_: Any) -> None:
            if clock.late or not late:
                act(model)

        optimizer.register_step_post_hook(hook)

    return put


def decays(model: GPT) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.mul_(0.999)


def decays_data(model: GPT) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.999)


def moves_attribute(model: GPT) -> None:
    model.blocks[0].bias = torch.ones(2)


def clips_late(model: GPT, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
    def hook(*_: Any) -> None:
        if clock.late:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    optimizer.register_step_pre_hook(hook)


def wraps_late(model: GPT, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
    step = optimizer.step

    def wrapped() -> None:
        step()
        with torch.no_grad():
            if clock.late:
                model.head.weight.mul_(0.999)

    optimizer.step = wrapped


def writes_after_backward(model: GPT, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
    def hook(*_: Any) -> None:
        with torch.no_grad():
            if clock.late:
                model.embedding.tokens.weight.mul_(0.999)

    model.head.register_full_backward_hook(hook)


LATE: dict[str, tuple[Put, int, str]] = {
    "weights": (post(decays), BEGINS, "AdamW: a hook of the optimizer wrote weights after a step"),
    "weights' data": (post(decays_data), 16, "something other than the optimizer wrote"),
    "a buffer": (post(lambda m: m.scale.add_(1)), BEGINS, "other than the optimizer wrote scale"),
    "an attribute": (post(moves_attribute), BEGINS, "AdamW: .* changed an attribute of a module"),
    "gradients": (clips_late, BEGINS, "AdamW: a hook of the optimizer wrote gradients before a"),
    "a wrapper": (wraps_late, BEGINS, "AdamW: a hook of the optimizer wrote weights after a step"),
    "a backward": (writes_after_backward, BEGINS, "other than the optimizer wrote embedding"),
}


@each_row("named", LATE)
def test_what_begins_at_a_later_step_is_refused_there(named: str) -> None:
    put, step, said = LATE[named]
    with pytest.raises(Refused, match=rf"step {step}: .*{said}"):
        train(put)


@each_row("named", LATE)
def test_the_control_unwatched_it_trains(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightWatch, "look", lambda *_: None)
    monkeypatch.setattr(WeightWatch, "stepping", lambda *_, **__: nullcontext())
    train(LATE[named][0])


@each_row("named", ["decay", "data", "schedule"])
def test_what_a_hook_did_in_the_trial_it_may_do(named: str) -> None:
    def clamps(model: GPT) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data.clamp_(-0.05, 0.05)

    def schedules(model: GPT, optimizer: torch.optim.Optimizer, clock: Clock) -> None:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)
        optimizer.register_step_post_hook(lambda *_: schedule.step())

    puts = {"decay": post(decays, late=False), "data": post(clamps, late=False)}
    train(puts.get(named, schedules))


@each_row("named", LATE.keys() - {"a backward"})
def test_where_everything_trains_everything_hooks_are_free(named: str) -> None:
    train(LATE[named][0], second=None)
