"""Floating point operations of one row, counted as torch runs them, on tensors without memory.

``torch.utils.flop_counter`` counts the matrix products, convolutions and attention of a forward
and a backward pass. It counts nothing elementwise, so norms, activations and the optimizer are not
among them. Every layer takes part: what a policy lets a step leave out is not subtracted.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from govray.errors import CouldNotCheck, UsageError
from govray.governance.attestation import model_folder

OWN = ("govray.engine.gpt:", "govray.engine.vit:")
"""Entrypoints that are built: code that a model folder names is run for no report."""

HOW = (
    "Counted by torch.utils.flop_counter in a forward and a backward pass of one full row, in "
    "every layer, without adapters. Not among them: elementwise work, the optimizer, validation, "
    "and work that was repeated after a fault. What the policy spares is not subtracted."
)


def row_flops(config: Mapping[str, Any]) -> int:
    """The operations of one full row of the model that a ``govray.json`` describes. Raises
    ``CouldNotCheck``: it describes no architecture of govray's own, or that can't be built."""
    entrypoint, context = config.get("entrypoint"), config.get("context")
    if not isinstance(entrypoint, str) or not entrypoint.startswith(OWN):
        raise CouldNotCheck(
            f"the model's class is {entrypoint}, whose code is not run to count",
            where=model_folder.CONFIG,
            do="Leave --count-flops out, and state training_flops in the provider's statement",
        )
    module, _, name = entrypoint.partition(":")
    try:
        with torch.device("meta"):
            model: nn.Module = getattr(importlib.import_module(module), name)(
                **config.get("hyperparameters", {})
            )
            row = _row(config, context)
        # Attention as plain products: of some fused kernels the counter knows nothing.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(row).sum().backward()
    except (UsageError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CouldNotCheck(
            f"the model can't be built from its configuration: {error}",
            where=model_folder.CONFIG,
            do="Leave --count-flops out, and state training_flops in the provider's statement",
        ) from None
    return int(counter.get_total_flops())


def _row(config: Mapping[str, Any], context: Any) -> torch.Tensor:
    """A row as the model takes it: ids ``[1, context]``, or an image ``[1, channels, h, w]``."""
    for tensor in config.get("rows", {}).get("tensors", ()):
        if tensor["name"] == "image":
            return torch.zeros(1, *tensor["shape"], dtype=torch.uint8)
    return torch.zeros(1, context, dtype=torch.int64)
