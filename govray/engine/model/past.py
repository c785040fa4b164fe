"""What a causal model keeps of a beginning that many rows share, so that it is computed once.

The ``forward`` of such a model takes ``past``. It fills an empty `Past` with what attention needs
of the one row that it reads: keys and values of each layer. Given the filled one, it reads what
comes next, in any number of rows, and leaves it as it is. Results equal those of whole rows up to
rounding.

It serves measuring, with gradients off. Training never passes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Past:
    """Of one beginning.

    Attributes:
        length: Its tokens; 0 while it is empty.
        layers: Keys and values of each layer of the built-in model, in order, both of shape
            (1, heads, tokens, channels).
        cache: What a model of transformers keeps instead.
    """

    length: int = 0
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    cache: Any = None


@dataclass(frozen=True)
class LayerPast:
    """The ``index``-th layer's view of a past, while a forward runs that fills or reads it."""

    past: Past
    index: int

    def joined(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the beginning and of these tokens; kept, if the past is empty.

        Args:
            key, value: (rows, heads, tokens, channels), one row where the past is empty. Of one
                dtype, on one device, which are the past's too.

        Returns:
            (rows, heads, beginning + tokens, channels) each.
        """
        if not self.past.length:
            self.past.layers.append((key, value))
            return key, value
        held = self.past.layers[self.index]
        first, second = (
            torch.cat([before.expand(len(now), -1, -1, -1), now], dim=2)
            for before, now in zip(held, (key, value), strict=True)
        )
        return first, second

    def mask(self, tokens: int, device: torch.device) -> Tensor:
        """Which tokens a token sees: bool of shape (1, 1, tokens, beginning + tokens)."""
        length = self.past.length
        every = torch.ones(tokens, length + tokens, dtype=torch.bool, device=device)
        return every.tril(length)[None, None]


def takes_past(model: nn.Module) -> bool:
    """Whether the model's ``forward`` has ``past``."""
    return "past" in signature(model.forward).parameters
