"""How exactly gradients were computed, seen from inside the loss.

A user's loss may enter autocast or cast by itself, so parameters' dtypes do not say in which ones
the model was computed. The graph behind the losses does: the gradient that arrives at an operation
has the dtype of what the operation returned.

A graph that ``torch.compile`` made cannot be looked into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node


def cast_parameters(model: nn.Module) -> None:
    """Keep a model's parameters in bfloat16: the same ones, so an optimizer still holds them.
    Buffers stay as they are: positions of 256 and more are no numbers of bfloat16."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)


def in_precision(device: torch.device, *, autocast: bool) -> AbstractContextManager[object]:
    """What a loss is computed in, when a step trains and when it is measured.
    ``autocast``: whether torch casts to bfloat16 there (`StepSettings.autocast`)."""
    return torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext()


def operations(losses: Iterable[Tensor]) -> Iterator[Node]:
    """Every operation behind the losses, once each.
    Leaves are left out: under DDP their nodes outlive the step, and a hook on them with it."""
    found: set[Node] = set()
    ahead = [each.grad_fn for each in losses]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found.add(node)
            if not hasattr(node, "variable"):
                yield node
            ahead += [before for before, _ in node.next_functions]


def watch_dtypes(losses: Iterable[Tensor]) -> set[torch.dtype]:
    """The floating dtypes on the way; the set is complete after the backward."""
    seen: set[torch.dtype] = set()

    def look(gradients: tuple[Tensor | None, ...]) -> None:
        seen.update(g.dtype for g in gradients if g is not None and g.dtype.is_floating_point)

    for node in operations(losses):
        node.register_prehook(look)
    return seen


def coarsest(dtypes: Iterable[torch.dtype]) -> float:
    """The largest distance from 1 to the next number, of these floating dtypes."""
    return max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)
