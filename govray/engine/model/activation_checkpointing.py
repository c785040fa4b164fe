"""Activations of a block are made again in backward, instead of kept from forward.

Every repeated block runs under torch's non-reentrant ``checkpoint``: it keeps the block's inputs,
and runs its forward once more when backward arrives. Masks of dropout are keyed by row, so they are
the same again. Memory falls to about one block's activations and every block's input. Forward is
computed twice.

Invariant: gradients are those of the plain model, bit for bit.

The forward is overridden on the instance, so parameters, FQNs and hooks stay. Hooks on the block
run outside, once.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from govray.errors import UsageError


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
