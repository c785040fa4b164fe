"""A Flax model that stands where a served model of torch does: ids in, logits out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from govray.engine.jax.frozen_model import FrozenModel
from govray.engine.model.adapters import PEFT_PREFIX
from govray.errors import UsageError


class FlaxText(nn.Module):
    """Calls a `FrozenModel`, which computes outside torch.

    Args:
        model: Built with weights that say nothing.
        weights: The attested ones, as arrays of JAX.
        adapters: Adapter name → its tensors, as peft calls them.
    """

    def __init__(
        self,
        model: Any,
        weights: Mapping[str, Any],
        adapters: Mapping[str, Mapping[str, Any]],
        context: int,
    ) -> None:
        super().__init__()
        self._active: str | None = None
        self._names = frozenset(adapters)
        pairs = {
            name: {fqn.removeprefix(PEFT_PREFIX): value for fqn, value in tensors.items()}
            for name, tensors in adapters.items()
        }
        self._frozen = FrozenModel(model, weights, pairs, context)

    def forward(self, tokens: Tensor) -> Tensor:
        """Integer ids (rows, tokens) → logits (rows, tokens, vocabulary), float32, on the CPU."""
        return torch.from_numpy(self._frozen.logits(tokens.numpy(), self._active))

    @contextmanager
    def active(self, name: str | None) -> Iterator[None]:
        """Let forwards read this adapter, or none; as `govray.engine.model.adapters.Adapters`."""
        if name is not None and name not in self._names:
            raise UsageError(
                "the model has no such adapter",
                where=f"adapter {name}",
                do=f"It has: {', '.join(sorted(self._names)) or 'none'}",
            )
        before, self._active = self._active, name
        try:
            yield
        finally:
            self._active = before
