"""Which optimizers a governed step can drive.

The step computes the gradients, over all ranks, and then calls ``optimizer.step()`` once. So an
optimizer cannot compute them itself, in a closure. Its forwards would follow no plan and no route,
and no rank would sum them.

Neither coupling of parameters nor the use of a closure is found out here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Adam, Optimizer, SparseAdam

from govray.errors import Refused


def refuse_undriven(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose step a governed step can't call. Raises ``Refused``: its step needs
    a closure (LBFGS), or it takes sparse gradients only (SparseAdam)."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, SparseAdam):
        raise Refused(
            f"{kind} takes sparse gradients only, and those can't be summed in buckets",
            where="optimizer",
            do="Use AdamW, and look embeddings up with sparse=False",
        )
    if needed := _required(optimizer):
        raise Refused(
            f"the step of {kind} needs an argument ({needed}), and the governed step has none",
            where="optimizer",
            do="A closure would compute gradients of its own, past the policy. Use an optimizer "
            "whose step() takes them from .grad, such as AdamW",
        )


def can_stay(optimizer: Optimizer) -> bool:
    """Whether a tensor on the device can tell it to leave weights and states as they are: torch's
    fused Adam and AdamW read ``found_inf``."""
    step = inspect.unwrap(type(optimizer).step)
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return step is inspect.unwrap(Adam.step) and fused


def _required(optimizer: Optimizer) -> str:
    """The names of what its step can't be called without. Of the class's step: schedulers put a
    wrapper into the instance, and its signature has ``self``."""
    try:
        _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    except (TypeError, ValueError):
        return ""  # compiled: it says nothing about itself
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(
        each.name
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind not in optional
    )


# Make an optimizer without importing torch's compiler, which takes seconds.
#
# ``Optimizer.add_param_group`` is never compiled: torch wraps it so when it is first called, and
# imports ``torch._dynamo`` for that. A driver makes optimizers and compiles nothing. Inside
# `without_compiler` the method is called as it is.
#
# Source: `torch._compile._disable_dynamo` of torch 2.9 to 2.13. Where torch keeps its wrapper
# elsewhere, nothing is changed, and it imports.


_KEPT = "__dynamo_disable"
"""The attribute in which torch keeps the wrapped function."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """Inside, a new optimizer imports no compiler."""
    plain = getattr(Optimizer.add_param_group, "__wrapped__", None)
    if plain is None or hasattr(plain, _KEPT) or "torch._dynamo" in sys.modules:
        yield
        return
    setattr(plain, _KEPT, plain)
    try:
        yield
    finally:
        delattr(plain, _KEPT)
