"""The masks of JAX are those of torch, bit for bit, without 64-bit integers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from govray.engine.jax import keyed_dropout
from govray.engine.model import keyed_dropout as torch_masks

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3)


def wide(keys: list[int]) -> keyed_dropout.Wide:
    return (
        jnp.array([key >> 32 for key in keys], jnp.uint32),
        jnp.array([key & 0xFFFFFFFF for key in keys], jnp.uint32),
    )


@settings(max_examples=40)
@given(keys=KEYS, p=st.sampled_from([1e-9, 0.1, 0.5, 0.999, 1.0]))
def test_masks_are_those_of_torch(keys: list[int], p: float) -> None:
    signed = torch.tensor([torch_masks.signed(key) for key in keys])
    expected = torch_masks.kept(signed, 11, p).numpy()
    assert np.array_equal(keyed_dropout.kept(wide(keys), 11, p), expected)


@settings(max_examples=40)
@given(keys=KEYS)
def test_mixing_is_that_of_torch(keys: list[int]) -> None:
    high, low = keyed_dropout.mix(wide(keys))
    mixed = [int(upper) << 32 | int(lower) for upper, lower in zip(high, low, strict=True)]
    signed = torch.tensor([torch_masks.signed(key) for key in keys])
    assert [torch_masks.signed(m) for m in mixed] == torch_masks.mix(signed).tolist()
