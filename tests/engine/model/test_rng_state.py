"""Every generator that a user's loss may draw from goes on where it stood."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from govray.engine.model.rng_state import Generators, generators, restore_generators
from govray.errors import Malformed
from govray.governance.formats import canonical_json


def draw() -> list[float]:
    return [
        *torch.rand(2).tolist(),
        random.random(),
        random.gauss(0, 1),
        *np.random.rand(2).tolist(),
        float(np.random.randn()),
    ]


def stored(state: Generators) -> Generators:
    """As a checkpoint gives it back."""
    values: Any = canonical_json.parse_canonical(canonical_json.encode(state.values))
    return Generators(state.tensors, values)


@pytest.mark.parametrize("halves", [0, 1], ids=["fresh", "half of a gauss pair drawn"])
def test_all_go_on_where_they_stood(halves: int) -> None:
    for _ in range(halves):
        random.gauss(0, 1)
        np.random.randn()
    state = stored(generators())
    first = draw()
    assert draw() != first  # the control
    restore_generators(state)
    assert draw() == first


def test_looking_changes_nothing() -> None:
    state = generators()
    first = draw()
    restore_generators(state)
    generators()
    assert draw() == first


@pytest.mark.parametrize("part", ["torch", "python", "numpy"])
def test_another_state_is_refused(part: str) -> None:
    state = stored(generators())
    bad = Generators(dict(state.tensors), dict(state.values))
    if part == "torch":
        bad.tensors["torch"] = torch.zeros(3, dtype=torch.uint8)
    else:
        bad.values[part] = {**bad.values[part], "words": [1, 2, 3]}
    with pytest.raises(Malformed, match="not the state"):
        restore_generators(bad)
    restore_generators(state)
