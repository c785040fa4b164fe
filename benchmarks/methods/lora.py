"""LoRA for the methods written by hand: the engine's adapter, with a mask over rows.

The tensors have the engine's names and first values. Outside ``active`` nothing is added to a
layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cases import SEED
from govray.engine.model.adapters import ALPHA_PER_RANK, adapted_layers, first_weight


class RowLora:
    """One adapter beside a model.

    Args:
        model: Hooks are registered on its layers.
        name: Of the adapter.
        rank: Of the adapter.
    """

    def __init__(self, model: nn.Module, name: str, rank: int) -> None:
        layers = adapted_layers(model)
        self._prefix = f"adapter:{name}/"
        self.pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        for fqn, layer in layers.items():
            assert isinstance(layer, nn.Linear)  # the built-in GPT has no other kind of layer
            weight = layer.weight
            a = first_weight(SEED, name, fqn, rank, layer.in_features, weight.dtype)
            b = weight.new_zeros(layer.out_features, rank)
            self.pairs[fqn] = nn.Parameter(a.to(weight.device)), nn.Parameter(b)
            layer.register_forward_hook(self._hook(fqn))
        self._mask: Tensor | None = None

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """By the engine's names."""
        return {
            f"{self._prefix}{fqn}.{part}.weight": parameter
            for fqn, pair in self.pairs.items()
            for part, parameter in zip(("lora_A", "lora_B"), pair, strict=True)
        }

    @contextmanager
    def active(self, mask: Tensor) -> Iterator[None]:
        """Add the adapter to the rows where ``mask`` (rows,) is true."""
        self._mask = mask
        try:
            yield
        finally:
            self._mask = None

    def _hook(self, fqn: str) -> Callable[..., Tensor | None]:
        def add(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if self._mask is None:
                return None
            a, b = self.pairs[fqn]
            added = F.linear(ALPHA_PER_RANK * F.linear(args[0], a), b)
            return output + torch.where(self._mask.view(-1, 1, 1), added, 0.0)

        return add
