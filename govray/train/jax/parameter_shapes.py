"""A Flax model as a torch module without values, for what reads names and sizes alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jax import Array
from torch import nn


def parameter_shapes(parameters: Mapping[str, Array]) -> nn.Module:
    """A module with parameters of these names, shapes and dtypes, on the meta device.
    ``parameters``: by FQN; of any shape, dtype and device."""
    model = nn.Module()
    for name, value in parameters.items():
        *above, own = name.split(".")
        module = model
        for part in above:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        dtype = getattr(torch, value.dtype.name)
        empty = torch.empty(value.shape, dtype=dtype, device="meta")
        module.register_parameter(own, nn.Parameter(empty, requires_grad=dtype.is_floating_point))
    return model
