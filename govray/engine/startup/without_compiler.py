"""Make an optimizer without importing torch's compiler, which takes seconds.

``Optimizer.add_param_group`` is never compiled: torch wraps it so when it is first called, and
imports ``torch._dynamo`` for that. A driver makes optimizers and compiles nothing. Inside
`without_compiler` the method is called as it is.

Source: `torch._compile._disable_dynamo` of torch 2.9 to 2.13. Where torch keeps its wrapper
elsewhere, nothing is changed, and it imports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer

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
