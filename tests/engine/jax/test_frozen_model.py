"""A Flax model that only answers: in any dtype, filled up to one length, of no other weights."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import pytest
from flax import nnx
from jax import Array

from govray.engine.jax.frozen_model import FrozenModel
from govray.engine.jax.gpt import FlaxGPT
from govray.engine.jax.lora import first_pairs
from govray.engine.jax.named_parameters import named_parameters
from govray.errors import Refused

CONTEXT = 4


def model() -> FlaxGPT:
    return FlaxGPT(1, 8, CONTEXT, 11, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)


def weights() -> dict[str, Array]:
    return {name: each.get_value() for name, each in named_parameters(model()).items()}


def adapters() -> dict[str, Mapping[str, Array]]:
    pairs = first_pairs(model(), {"acme": 2}, seed=0)
    return {"acme": {n.removeprefix("adapter:acme/"): jnp.ones_like(v) for n, v in pairs.items()}}


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"head.kernel": jnp.zeros((8, 12), jnp.bfloat16)}, r"head.kernel has shape \(8, 12\)"),
        ({"../head": jnp.zeros(1)}, r"do not fit the class: \.\./head"),
    ],
)
def test_other_weights_are_refused(spoilt: dict[str, Array], said: str) -> None:
    with pytest.raises(Refused, match=said):
        FrozenModel(model(), weights() | spoilt, {}, CONTEXT)
    lacking = {"acme": dict(list(adapters()["acme"].items())[1:])}
    with pytest.raises(Refused, match="do not fit the class"):
        FrozenModel(model(), weights(), lacking, CONTEXT)
