"""A Flax model that answers and learns nothing: in evaluation mode, with one adapter or with none.

One program is compiled for the base model and one for each adapter, for one length of text. Shorter
texts are filled up at their end. So the model must be causal: a token's logits may not depend on
those behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array

from govray.engine.jax.lora import A, B, adapted, adapted_layers
from govray.engine.jax.named_parameters import exchange_modules, named_parameters
from govray.engine.jax.routed_pass import ModelShape, model_shape
from govray.errors import Refused
from govray.governance.policy.route import ADAPTER


class FrozenModel:
    """A causal language model with its adapters.

    Args:
        model: Built with weights that say nothing.
        weights: By FQN; of the model's shapes and dtypes.
        adapters: Adapter name → its A and B by FQN below the adapter, as `govray.engine.jax.lora`
            calls them.
        context: Tokens that the model sees at most.
    """

    def __init__(
        self,
        model: nnx.Module,
        weights: Mapping[str, Array],
        adapters: Mapping[str, Mapping[str, Array]],
        context: int,
    ) -> None:
        model.eval()
        variables = named_parameters(model)
        _require_same({n: v.get_value().shape for n, v in variables.items()}, weights)
        for name, variable in variables.items():
            variable.set_value(weights[name])
        layers = adapted_layers(model)
        for adapter, pairs in adapters.items():
            due = {f"{fqn}.{part}" for fqn in layers for part in (A, B)}
            _require_names(due, pairs, f"adapter {adapter}")
        self._shape, self._rest = model_shape(model)
        self._weights = {n: v.get_value() for n, v in variables.items()}
        self._pairs = {
            adapter: {f"{ADAPTER}{adapter}/{fqn}": value for fqn, value in pairs.items()}
            for adapter, pairs in adapters.items()
        }
        self._context = context

    def logits(self, tokens: np.ndarray, adapter: str | None = None) -> np.ndarray:
        """Integer ids (rows, tokens) → logits (rows, tokens, vocabulary), float32.
        ``tokens``: as many as the context at most."""
        count = tokens.shape[1]
        filled = np.pad(tokens, ((0, 0), (0, self._context - count)))
        parameters = self._weights | (self._pairs[adapter] if adapter else {})
        found = _forward(self._shape, adapter, parameters, self._rest, filled)
        return np.array(found[:, :count], dtype=np.float32)


@partial(jax.jit, static_argnames=("shape", "adapter"))
def _forward(
    shape: ModelShape, adapter: str | None, parameters: dict[str, Array], rest: Any, tokens: Array
) -> Array:
    model = shape.filled(parameters, rest)
    if adapter is not None:
        exchange_modules(model, adapted(model, adapter, parameters))
    return model(tokens)


def _require_same(due: Mapping[str, tuple[int, ...]], given: Mapping[str, Array]) -> None:
    _require_names(due.keys(), given, "weights")
    for name, shape in due.items():
        if given[name].shape != shape:
            raise Refused(
                f"{name} has shape {given[name].shape}, the class has {shape}",
                where="weights",
                do="Build the class with the hyperparameters that it was trained with",
            )


def _require_names(due: Any, given: Mapping[str, Array], where: str) -> None:
    if odd := {*due} ^ {*given}:
        raise Refused(
            f"the tensors do not fit the class: {min(odd)}",
            where=where,
            do="Build the class that the model was trained as",
        )
