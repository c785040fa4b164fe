"""Before the first step: does the optimizer keep domains apart?

A governed step gives a gradient to what its rows may update, and the optimizer is to leave
everything else alone, state included. Some optimizers share something between parameters: a
gradient norm, an estimate over all of them, a generator, a count in a parameter group. There, what
one domain's rows did changes what another learns. So a few small parameters of several domains are
stepped, and put back:

1. What has no gradient, and its state, stays as it is. So do the model's buffers and attributes.
2. A domain's parameters and state become the same bits whether the others step with it,
   before it or after it.
3. So they do after forty steps, with the others or alone. From the first of them on nothing that
   the optimizer keeps beside the states of parameters changes: settings of groups, attributes,
   globals.

In one and two steps, the hooks of the optimizer and wrappers around its ``step`` run, as they will
in training. In forty, its own ``step`` runs alone: schedules that act in hooks may end sooner. The
others' gradients are ten thousand times larger. So what acts from a threshold on, such as a clip of
all gradients, acts there and not on a domain alone.

What hooks begin later is seen when it happens (`govray.engine.startup.weight_watch`).

Invariants: everything is as before afterwards: parameters, states, groups, generators, and what
hooks keep (`put_back`). Ranks must do it together, for shards may be gathered in a step.

A coupling that keeps nothing, and needs larger parameters, is not found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from govray.engine.collective.routed_model import RoutedModel
from govray.engine.model.optimizer_view import optimizer_view
from govray.engine.model.rng_state import generators, restore_generators
from govray.engine.model.tensor_content import contents
from govray.engine.startup.model_state import (
    Key,
    attributes,
    changed,
    kept_beside_parameters,
)
from govray.engine.startup.object_graph import put_back
from govray.errors import GovrayError, Refused

_DOMAINS = 3
_LARGEST_RATE = 1e-3
"""Learning rate of the trial where a schedule begins with none: nothing would move."""

_LARGER = 1e4
"""Gradients of other domains, by those of the one that is watched."""

_STEPS = 40
"""What is one number over all parameters needs some to move."""

_SCHEDULED = ("lr", "momentum", "betas", "weight_decay")
"""What a schedule may move in a group. It follows the steps, which all domains share."""

GLOBAL_HOOKS: Sequence[dict[int, Any]] = tuple(
    getattr(torch_optimizer, f"_global_optimizer_{when}_hooks", {}) for when in ("pre", "post")
)
"""Those of all optimizers."""

Names = Sequence[str]
Bits = dict[str, int]

Stepping = Callable[[Names], AbstractContextManager[None]]
"""What surrounds a step of the optimizer that may move these parameters."""


def try_optimizer(
    optimizer: torch.optim.Optimizer, routed: RoutedModel, stepping: Stepping
) -> None:
    """Step small parameters of some domains in several orders, and put all back. Collective.
    Three domains at most are tried. ``stepping``: learns around each step what hooks do."""
    domains = routed.domains
    tried = [*domains[: _DOMAINS - 1], domains[-1]] if len(domains) > _DOMAINS else domains
    units = [names for names in (_small(optimizer, each.parameters) for each in tried) if names]
    if not units:
        return
    if len(units) == 1:  # the upper part of its layers may learn alone
        units = [units[0][-1:]]
    try:
        _try(optimizer, units, routed, stepping)
    except (GovrayError, torch.OutOfMemoryError, dist.DistError):
        raise  # the last two are the machine's, and another attempt may go on
    except Exception as error:
        raise Refused(
            "the optimizer, with its hooks, can't step a part of what it holds: "
            f"{type(error).__name__}: {error}",
            where=type(optimizer).__name__,
            do="Use one of torch.optim, such as AdamW or SGD, and let hooks pass over parameters "
            "whose .grad is None",
        ) from error


def _try(
    optimizer: torch.optim.Optimizer,
    units: Sequence[Names],
    routed: RoutedModel,
    stepping: Stepping,
) -> None:
    parameters = routed.parameters
    chosen = [name for names in units for name in names]
    others = {n: p for n, p in parameters.items() if n not in chosen}
    before = _bits(optimizer, others)
    mine = {name: parameters[name] for name in chosen}
    start = _bits(optimizer, mine)
    first, *rest = units
    groups = optimizer.param_groups
    # `_put_back` sees to these, and nothing may move the others.
    leave = [optimizer.state, groups, *groups, *parameters.values()]
    gradients = {
        name: (1.0 if name in first else _LARGER) * (0.5 * p.detach() + 0.01)
        for name, p in mine.items()
    }

    @contextmanager
    def steps() -> Iterator[Callable[[Iterable[Names]], None]]:
        """Inside, what does a step of some units."""
        with put_back([optimizer, *GLOBAL_HOOKS], leave), _put_back(optimizer, mine):
            scheduled = [_scheduled(group) for group in optimizer.param_groups]

            def step(turn: Iterable[Names]) -> None:
                for group, settings in zip(optimizer.param_groups, scheduled, strict=True):
                    group.update(settings)
                moving = {name: parameters[name] for names in turn for name in names}
                for name, parameter in moving.items():
                    parameter.grad = gradients[name].clone()
                with (
                    optimizer_view(optimizer, moving.values(), routed.adapter_ids),
                    stepping([*moving]),
                ):
                    optimizer.step()
                for parameter in moving.values():
                    parameter.grad = None

            yield step

    def after(*turns: Iterable[Names]) -> list[Bits]:
        """The bits of what was chosen after each turn, a step of some units."""
        seen = []
        with steps() as step:
            for turn in turns:
                step(turn)
                seen.append(_bits(optimizer, mine))
        return seen

    def later(turn: Iterable[Names]) -> Bits:
        """The bits of the first unit after many steps of the optimizer without hooks."""
        with steps() as step, _without_hooks(optimizer):
            step(turn)
            kept = kept_beside_parameters(optimizer)
            for _ in range(_STEPS - 2):
                step(turn)
            last = kept_beside_parameters(optimizer)
            step(turn)
            now = kept_beside_parameters(optimizer)
            shared.append(changed(kept, now) or changed(last, now))
            return _bits(optimizer, {name: mine[name] for name in first})

    shared: list[Key | None] = []
    model = attributes(routed.model, buffers=True)
    alone, *both = after([first], rest) if rest else after([first])
    pairs = [
        ({k: v for k, v in start.items() if _owner(k) not in first}, alone),
        (before, _bits(optimizer, others)),
    ]
    for expected in both:
        pairs += [(expected, after(units)[0]), (expected, after(rest, [first])[1])]
    moved = changed(model, attributes(routed.model, buffers=True))
    pairs.append((later([first]), later(units)))
    # All steps before the first verdict: a rank may hold no part of what differs.
    for key in filter(None, shared):
        _refuse_shared(optimizer, " ".join(filter(None, key)))
    for expected, found in pairs:
        _require_same(optimizer, expected, found)
    if moved:
        where, name = moved
        raise Refused(
            f"a step of the optimizer, with its hooks, changed {name}: what one class leaves "
            "behind, another reads",
            where=where or type(routed.model).__name__,
            do="Move nothing but parameters there, each by its own gradient",
        )


@contextmanager
def _without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, ``step`` is that of the optimizer's class, and nothing else."""
    hooks: list[dict[int, Any]] = [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        *GLOBAL_HOOKS,
    ]
    held = [dict(each) for each in hooks]
    wrapper = vars(optimizer).pop("step", None)
    try:
        for each in hooks:
            each.clear()
        yield
    finally:
        for each, before in zip(hooks, held, strict=True):
            each.update(before)
        if wrapper is not None:
            optimizer.step = wrapper  # type: ignore[method-assign]


def _small(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """The smallest of each parameter group and number of dimensions, in order."""
    group_of = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    smallest: dict[tuple[int, int], str] = {}
    for name, parameter in parameters.items():
        kind = group_of[id(parameter)], parameter.dim()
        if kind not in smallest or parameter.numel() < parameters[smallest[kind]].numel():
            smallest[kind] = name
    chosen = set(smallest.values())
    return [name for name in parameters if name in chosen]


def _scheduled(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(group[key]) for key in _SCHEDULED if key in group}


def _bits(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> Bits:
    """What each parameter and each tensor or number of its state holds."""
    tensors: dict[str, Tensor] = dict(parameters)
    numbers: Bits = {}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{name} {key}"] = value
            else:
                numbers[f"{name} {key}"] = hash(repr(value))
    return contents(tensors) | numbers


def _owner(key: str) -> str:
    return key.partition(" ")[0]


def _refuse_shared(optimizer: torch.optim.Optimizer, what: str) -> NoReturn:
    raise Refused(
        f"the optimizer keeps one value for several parameters, and its steps change it: {what}. "
        "So gradients of other domains would move a parameter",
        where=type(optimizer).__name__,
        do="Use an optimizer that keeps all it knows in the state of each parameter, such as AdamW "
        "or SGD",
    )


def _require_same(optimizer: torch.optim.Optimizer, expected: Bits, found: Bits) -> None:
    for key, value in expected.items():
        if found.get(key) != value:
            name, _, state = key.partition(" ")
            raise Refused(
                f"what the optimizer makes of {name}{f' ({state})' if state else ''} depends on "
                "gradients of other domains, so one domain's rows would move another",
                where=type(optimizer).__name__,
                do="Use an optimizer that treats each parameter by itself, such as AdamW or SGD",
            )


@contextmanager
def _put_back(
    optimizer: torch.optim.Optimizer, chosen: Mapping[str, nn.Parameter]
) -> Iterator[None]:
    """Inside, the optimizer may step what was chosen; afterwards all is as before."""
    drawn = generators()
    values = {name: parameter.detach().clone() for name, parameter in chosen.items()}
    known = set(optimizer.state)
    states = [
        (parameter, optimizer.state[parameter], _kept(optimizer.state[parameter]))
        for parameter in chosen.values()
        if parameter in known
    ]
    groups = [_copied(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "lr" in group and not float(group["lr"]):
            group["lr"] = _LARGEST_RATE
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in chosen.items():
                parameter.copy_(values[name])
        for fresh in set(optimizer.state) - known:
            del optimizer.state[fresh]
        for parameter, state, kept in states:
            state.clear()
            state.update({key: _restored(value, copied) for key, (value, copied) in kept.items()})
            optimizer.state[parameter] = state
        for group, settings in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(settings)
        restore_generators(drawn)


def _kept(state: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each value of a state and a copy of what it holds: the tensors themselves stay in use."""
    return {
        key: (value, value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value))
        for key, value in state.items()
    }


@torch.no_grad()
def _restored(value: Any, copied: Any) -> Any:
    return value.copy_(copied) if isinstance(value, Tensor) else copied


def _copied(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: v if key == "params" else copy.deepcopy(v) for key, v in group.items()}
