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
from torch.utils.checkpoint import checkpoint

from govray.engine.model.keyed_dropout import Keyed
from govray.errors import UsageError

# Activations of a block are made again in backward, instead of kept from forward.
#
# Every repeated block runs under torch's non-reentrant ``checkpoint``: it keeps the block's
# inputs, and runs its forward once more when backward arrives. Masks of dropout are keyed by row,
# so they are the same again. Memory falls to about one block's activations and every block's
# input. Forward is computed twice.
#
# Invariant: gradients are those of the plain model, bit for bit.
#
# The forward is overridden on the instance, so parameters, FQNs and hooks stay. Hooks on the block
# run outside, once.
#
# Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".


def recompute_blocks(model: nn.Module) -> None:
    """Let every repeated block of a model be computed again in backward, in place.
    ``model``: its blocks are what the outermost lists hold."""
    blocks = list(repeated_blocks(model))
    if not blocks:
        raise UsageError(
            "the model has no repeated blocks whose activations could be made again",
            where="activation_checkpointing",
            do="Keep the blocks in an nn.ModuleList, or leave the field out",
        )
    for block in blocks:
        if not isinstance(vars(block).get("forward"), _Recomputing):
            block.forward = _Recomputing(block)


class _Recomputing:
    """A block's forward, whose activations are not kept."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Looked up at each call: `fully_shard` gives the block another class.
        forward = type(self._block).forward
        if not torch.is_grad_enabled():
            return forward(self._block, *args, **kwargs)
        return checkpoint(forward, self._block, *args, use_reentrant=False, **kwargs)


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """What the outermost lists hold, but single layers."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if next(block.children(), None) is not None)
        else:
            yield from repeated_blocks(child)


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
