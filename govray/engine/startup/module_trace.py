"""Which module first treats the same row differently in two forwards: a place for people.

Every module's inputs and outputs are compared in the order of the calls: the one row of each that
stands for the same data. The place is the module whose output differs though its input does not, or
the one that passes a differing tensor on.

Tensors are not looked at whose first dimension is neither the rows nor a multiple of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Run = tuple[Callable[[], object], int, int]
"""A forward, how many rows it has, and which of them is looked at."""

LOSS = "loss_fn"


@dataclass(frozen=True)
class _Event:
    fqn: str
    comes_in: bool
    inside: str  # the module whose code caused it
    tensors: tuple[Tensor, ...]


def first_difference(model: nn.Module, one: Run, other: Run, tolerance: float) -> str:
    """FQN of the innermost module in which a row first differs; ``loss_fn`` if none does.
    ``tolerance``: relative differences up to it are rounding."""
    name = type(model).__name__
    for before, after in zip(_events(model, one), _events(model, other), strict=False):
        if (before.fqn, before.comes_in) != (after.fqn, after.comes_in):
            return before.inside or name  # it calls its parts in another order
        pairs = zip(before.tensors, after.tensors, strict=False)
        if any(_differ(ours, theirs, tolerance) for ours, theirs in pairs):
            return before.inside or name
    return LOSS


def _events(model: nn.Module, run: Run) -> list[_Event]:
    forward, rows, row = run
    events: list[_Event] = []
    inside: list[str] = []
    handles = []

    def enters(fqn: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, named: Any) -> None:
            caller = inside[-1] if inside else LOSS
            given = _rows((arguments, named), rows, row)
            events.append(_Event(fqn, True, caller, tuple(given)))
            inside.append(fqn)

        return hook

    def leaves(fqn: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, result: Any) -> None:
            inside.pop()
            events.append(_Event(fqn, False, fqn, tuple(_rows(result, rows, row))))

        return hook

    for fqn, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enters(fqn), with_kwargs=True))
        handles.append(module.register_forward_hook(leaves(fqn)))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return events


def _rows(value: Any, rows: int, row: int) -> Iterator[Tensor]:
    """The wanted row of every floating tensor inside, in order."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.dim() and len(value) and not len(value) % rows:
            yield value.detach().reshape(rows, -1)[row].double().cpu()
    elif isinstance(value, dict):
        for part in value.values():
            yield from _rows(part, rows, row)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _rows(part, rows, row)


def _differ(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return False
    return not bool(torch.linalg.vector_norm(ours - theirs) <= tolerance * ours.norm())
