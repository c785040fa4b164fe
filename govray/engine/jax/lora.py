"""LoRA adapters beside a Flax model, one per removable class, with the names and shapes of peft.

    y  =  x W + c + s · (x Aᵀ) Bᵀ

An adapter's parameters are not the model's. A pass that reads an adapter puts `AdaptedLinear` in
the place of each adapted layer, in its own copy of the model. Every other pass has the plain model.

Invariants:

* Only the passes of streams that train an adapter read it.
* An adapter's first weights depend on (seed, adapter name, layer FQN) and the layer's shape alone.
  The bits are not those of the torch engine, which has another generator.
* ``alpha`` is twice the rank, so the scale is 2 whatever the rank.

Only ``nnx.Linear`` inside an ``nnx.List`` takes an adapter.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from govray.engine.jax.named_parameters import named_modules
from govray.engine.steps.keyed_seed import adapter_seed
from govray.errors import UsageError

_SCALE = 2.0
A, B = "lora_A.weight", "lora_B.weight"


def pair_names(adapter: str, fqn: str) -> tuple[str, str]:
    """What A and B of an adapter at a layer are called."""
    return f"adapter:{adapter}/{fqn}.{A}", f"adapter:{adapter}/{fqn}.{B}"


def adapted_layers(model: nnx.Module) -> dict[str, nnx.Linear]:
    """FQN → layer, for every linear layer inside an ``nnx.List`` of the model."""
    modules = named_modules(model)
    lists = [fqn for fqn, module in modules.items() if isinstance(module, nnx.List)]
    return {
        fqn: module
        for fqn, module in modules.items()
        if type(module) is nnx.Linear and any(fqn.startswith(f"{parent}.") for parent in lists)
    }


def first_pairs(model: nnx.Module, ranks: Mapping[str, int], seed: int) -> dict[str, Array]:
    """The parameters that the adapters of a model start from.

    Args:
        ranks: Adapter name → rank, at least 1.

    Returns:
        By name: A of shape (rank, in), uniform in ±1/√in, and B of shape (out, rank), zeros. Both
        are of the layer's dtype.
    """
    layers = adapted_layers(model)
    if ranks and not layers:
        raise UsageError(
            "the model has no nnx.Linear inside an nnx.List, so nothing to adapt",
            where=type(model).__name__,
            do="Keep the repeated blocks in an nnx.List, or use a profile without adapter",
        )
    pairs: dict[str, Array] = {}
    for adapter, rank in ranks.items():
        if rank < 1:
            raise UsageError(f"rank {rank}", where=f"adapter {adapter}", do="Give at least 1")
        for fqn, layer in layers.items():
            key = adapter_seed(seed, adapter, fqn)
            halves = np.array([key >> 32, key & 0xFFFFFFFF], dtype=np.uint32)
            bound = layer.in_features**-0.5
            one, other = pair_names(adapter, fqn)
            dtype = layer.kernel[...].dtype
            pairs[one] = jax.random.uniform(
                jax.random.wrap_key_data(halves, impl="threefry2x32"),
                (rank, layer.in_features),
                jnp.float32,
                -bound,
                bound,
            ).astype(dtype)
            pairs[other] = jnp.zeros((layer.out_features, rank), dtype)
    return pairs


def adapted(
    model: nnx.Module, adapter: str, parameters: Mapping[str, Array]
) -> dict[str, nnx.Module]:
    """FQN → what stands in for each adapted layer while an adapter is read.
    ``parameters``: its A and B of every layer, by name."""
    found: dict[str, nnx.Module] = {}
    for name, layer in adapted_layers(model).items():
        a, b = (parameters[each] for each in pair_names(adapter, name))
        found[name] = AdaptedLinear(layer, a, b)
    return found


class AdaptedLinear(nnx.Module):
    """A linear layer with an adapter, inside one pass.

    Args:
        a: (rank, in).
        b: (out, rank).
    """

    def __init__(self, layer: nnx.Linear, a: Array, b: Array) -> None:
        self._layer = layer
        # Data, for a transformation inside the model compares what is static.
        self._a, self._b = nnx.data(a), nnx.data(b)

    def __call__(self, inputs: Array) -> Array:
        """(…, in) → (…, out), of the layer's dtype and device."""
        output = self._layer(inputs)
        a, b = self._a.astype(output.dtype), self._b.astype(output.dtype)
        return output + _SCALE * (inputs.astype(output.dtype) @ a.T) @ b.T
