"""What the optimizer sees in a step, so that an adapter costs a step without it next to nothing.

A run may have hundreds of adapters, and a step trains a few. Touching the thousands of
tensors of the others, if only to find that they have no gradient, would take longer than
many a forward pass.

Invariants:

* An optimizer's parameter groups of adapters alone that this step does not train are out of its
  sight while it steps. It would find no gradient there, so what it does to the others is the same.
* In all groups that it sees, a parameter that this step does not train has no gradient.

The base model's parameter groups stay visible: an optimizer may keep what it shares in the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def optimizer_view(
    optimizer: torch.optim.Optimizer,
    trained: Iterable[nn.Parameter],
    adapters: Set[int],
    stays: Tensor | None = None,
) -> Iterator[None]:
    """Inside, the optimizer sees what it may move, and its state is that of all groups after.

    Args:
        adapters: ``id`` of every adapter's parameter. Not the parameters: hashing those
            would touch them.
        stays: Where it is 1 on the device, the optimizer's kernels leave all as it is; only for one
            that `can_stay`. Shape (), float32.
    """
    moving = {id(parameter) for parameter in trained}
    groups = optimizer.param_groups
    seen = []
    for group in groups:
        members = set(map(id, group["params"]))
        if members.isdisjoint(moving) and members <= adapters:
            continue
        seen.append(group)
        for parameter in group["params"]:
            if id(parameter) not in moving:
                parameter.grad = None
    optimizer.param_groups = seen
    if stays is not None:
        optimizer.found_inf = stays  # type: ignore[attr-defined]  # as `torch.amp.GradScaler` does
    try:
        yield
    finally:
        optimizer.param_groups = groups
        optimizer.__dict__.pop("found_inf", None)
