"""``torch.compile`` of every repeated block, such that no stream's graph depends on another stream.

Graphs are static: each shape has a graph of its own, made from that shape and the route alone. With
dynamic shapes the second shape that torch sees would change what all later rows are computed with.
So a corpus more or less could move another one's bits. For the same reason there is no limit beyond
which torch runs a block without a graph: it is an error instead.

Parameters, FQNs and hooks stay those of the plain model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from govray.engine.model.activation_checkpointing import repeated_blocks
from govray.engine.model.keyed_dropout import Keyed
from govray.errors import UsageError

BACKEND = "inductor"
"""What makes kernels of a graph."""

_GRAPHS = 1 << 16
"""Of one block: far more than there are routes and shapes."""


def compile_blocks(model: nn.Module, keyed: Keyed) -> None:
    """Compile every repeated block of a model, in place.
    ``keyed``: its dropout, whose masks are drawn outside the graphs."""
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise UsageError(
            "the model has no repeated blocks that could be compiled",
            where="compile",
            do="Keep the blocks in an nn.ModuleList, or leave the field out",
        )
    # Its numbers are new in every step, and would make a graph each.
    draws: Any = torch.compiler.disable(keyed.kept)
    keyed.kept = draws  # type: ignore[method-assign]
    settings: Any = torch._dynamo.config
    settings.recompile_limit = settings.accumulated_recompile_limit = _GRAPHS
    settings.fail_on_recompile_limit_hit = True
    for block in blocks:
        block.compile(dynamic=False, backend=BACKEND)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Inside, what ``torch.compile`` has in hand runs as it was written."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
