"""A model is taken apart once, and again wherever somebody changed it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from govray.engine.jax.flax_framework import ModelSplit
from govray.engine.jax.named_parameters import named_parameters
from govray.engine.jax.routed_pass import model_shape
from tests.support.table import each_row
from tests.support.tiny_flax import WIDTH, Tiny


class Scaled(Tiny):
    """With a variable that is no parameter, and settings in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nnx.Variable(jnp.ones(()))
        self.settings = nnx.static({"slow": True})


def new_weights(model: Scaled) -> None:
    for variable in named_parameters(model).values():
        variable.set_value(variable.get_value() + 1)


def another_module(model: Scaled) -> None:
    model.blocks[0] = model.blocks[1]


def another_rate(model: Scaled) -> None:
    model.blocks[1].dropout.rate = 0.25


CHANGES: dict[str, Callable[[Scaled], object]] = {
    "mode": lambda model: model.eval(),
    "rate": another_rate,
    "module": another_module,
    "variable": lambda model: model.scale.set_value(jnp.zeros(())),
    "setting": lambda model: model.settings.update(slow=False),
    "metadata": lambda model: model.scale.set_metadata(used=True),
    "attribute": lambda model: setattr(model, "late", nnx.Param(jnp.ones(WIDTH))),
}


def test_new_weights_leave_the_split_as_it_is() -> None:
    model = Scaled()
    split = ModelSplit(model)
    before = split.now()
    new_weights(model)
    assert split.now() is before
    assert before[0] == model_shape(model)[0]


def test_what_a_reference_refers_to_counts() -> None:
    model = Scaled()
    model.scale = nnx.Variable(jnp.ones(()), ref=True)
    split = ModelSplit(model)
    before = split.now()
    model.scale.set_value(jnp.zeros(()))
    assert split.now() is not before


@each_row("change", CHANGES)
def test_what_changes_in_the_model_counts(change: str) -> None:
    model = Scaled()
    split = ModelSplit(model)
    before = split.now()
    CHANGES[change](model)
    after = split.now()
    assert after is not before
    shape, rest = model_shape(model)
    assert after[0] == shape
    found, expected = jax.tree.leaves(after[1]), jax.tree.leaves(rest)
    assert [id(array) for array in found] == [id(array) for array in expected]
    assert split.now() is after
