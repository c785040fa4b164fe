"""One pass: rows of one route through the model, and the gradients that the route permits.

The gradient is taken with respect to the permitted parameters alone. All others are constants of
the differentiated function, as if each stood behind ``stop_gradient``. So JAX traces no weight
gradient for them, and no backward below the lowest permitted layer: XLA never sees that work.
A parameter outside the route has no gradient, not a zero one.

A weight w ≠ 1 scales the pass's gradient before it is added to others. It scales the numerator
only: N_l counts every loss target with w > 0 alike.

Route, adapter and loss function are static. So there is one compiled program for each route and
number of rows, and no program has rows of two routes. It has no part that another stream's presence
could change.

Invariants: no variable of the model changes in a forward pass. What a class leaves in one, others
would read. A generator that the model draws from by itself counts as such a variable. Where one
holds another array afterwards, as behind ``nnx.remat``, the pass says whether its numbers differ.

Source: Cloud et al. 2024, "Gradient Routing: Masking Gradients to Localize Computation in Neural
Networks", for the idea.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.errors import TraceContextError
from jax import Array

from govray.engine.jax.keyed_dropout import RowDropout
from govray.engine.jax.lora import adapted
from govray.engine.jax.named_parameters import Path, aliases, exchange_modules, fqn, named_modules
from govray.engine.steps.batch import IGNORED
from govray.errors import Refused, UsageError

LossFn = Callable[[nnx.Module, Mapping[str, Array]], Array]
"""(model, tensors) → losses of the shape of ``tensors["targets"]``, not reduced."""

Parameters = Mapping[str, Array]


@dataclass(frozen=True)
class ModelShape:
    """A Flax model without its arrays: what is static of it.

    Attributes:
        definition: NNX's graph definition.
        paths: FQN of a parameter, by its first name → where NNX holds it.
    """

    definition: Any
    paths: tuple[tuple[str, Path], ...] = field(compare=False)

    @cached_property
    def _hash(self) -> int:
        try:
            return hash(self.definition)
        except TypeError:  # a plain list or dict of the model has no hash, but can be compared
            return hash(self.paths)

    def __hash__(self) -> int:
        return self._hash

    def filled(self, parameters: Parameters, rest: Any) -> nnx.Module:
        """A model of this shape with these arrays.

        Args:
            parameters: By FQN; others' are left aside.
            rest: NNX's state of all that is no parameter.
        """
        flat = {path: parameters[name] for name, path in self.paths}
        return nnx.merge(self.definition, nnx.from_flat_state(flat), rest)


def model_shape(model: nnx.Module) -> tuple[ModelShape, Any]:
    """The static part of a model, and NNX's state of all that is no parameter."""
    definition, parameters, rest = nnx.split(model, nnx.Param, ...)
    paths = tuple((fqn(path), path) for path, _ in nnx.to_flat_state(parameters))
    return ModelShape(definition, paths), rest


@dataclass(frozen=True)
class PassRoute:
    """What is static of a pass's route.

    Attributes:
        weights: Name of a parameter → weight, for those that may learn.
        adapter: What the forward reads beside the model, if anything.
    """

    weights: tuple[tuple[str, float], ...]
    adapter: str | None


@partial(jax.jit, static_argnames=("shape", "route", "loss_fn"))
def routed_pass(
    shape: ModelShape,
    route: PassRoute,
    loss_fn: LossFn,
    learning: Parameters,
    constant: Parameters,
    rest: Any,
    keys: Array,
    tensors: Mapping[str, Array],
) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Σ of the losses, and Σ_i w_il ∂ℓ_i/∂θ_l for the permitted parameters.

    What is last is for `refuse_changed`.

    Args:
        learning: The parameters that the route permits, of any shape and floating dtype.
        constant: All others of the model, and of the adapter that it reads.
        keys: Of the rows' dropout masks, uint32 of shape (rows, 2).
        tensors: The rows'; ``targets`` is −100 where there is no loss target.

    Raises:
        Refused: A variable of the model changed.
    """

    def summed(own: Parameters) -> tuple[Array, dict[str, Array]]:
        model = shape.filled({**own, **constant}, rest)
        before = [(paths[0], v, v.get_value()) for v, paths in aliases(model).values()]
        prepare(model, route.adapter, {**own, **constant}, keys)
        try:
            losses = loss_fn(model, tensors)
        except TraceContextError as error:  # what is not differentiated is from outside
            raise _changed(str(error).partition(" (")[0]) from error
        changed = {
            fqn(path): _differ(value, after)
            for path, variable, value in before
            if (after := variable.get_value()) is not value
        }
        targets = tensors["targets"]
        if losses.shape != targets.shape:
            raise UsageError(
                f"loss_fn returned shape {losses.shape}, targets have {targets.shape}",
                where="loss_fn",
                do="Return one loss for each target, not reduced",
            )
        wide = jnp.promote_types(losses.dtype, jnp.float32)
        return jnp.where(targets != IGNORED, losses, 0).sum(dtype=wide), changed

    (total, changed), gradients = jax.value_and_grad(summed, has_aux=True)(dict(learning))
    weights = dict(route.weights)
    weighed = {
        name: gradient if weights[name] == 1.0 else gradient * weights[name]
        for name, gradient in gradients.items()
    }
    return total, weighed, changed


def refuse_changed(changed: Mapping[str, Array]) -> None:
    """Wait for what a pass says of variables that hold another array, and refuse other numbers.

    Args:
        changed: FQN → whether they differ.

    Raises:
        Refused: They do.
    """
    for name, differs in changed.items():
        if differs:
            raise _changed(f"variable {name} is another after the forward pass")


def _differ(before: Array, after: Array) -> Array:
    if jnp.shape(before) != jnp.shape(after) or jnp.result_type(before) != jnp.result_type(after):
        return jnp.array(True)
    if jax.dtypes.issubdtype(before.dtype, jax.dtypes.prng_key):
        before, after = jax.random.key_data(before), jax.random.key_data(after)
    return jnp.any(before != after)


def _changed(how: str) -> Refused:
    return Refused(
        f"the forward pass changes the model: {how}",
        where="model",
        do="State that one class writes and another reads can't be routed: use layers without "
        "running state, and nnx.Dropout for random numbers",
    )


def prepare(model: nnx.Module, adapter: str | None, parameters: Parameters, keys: Array) -> None:
    """Key the dropout of this copy of the model, and let its layers read the adapter."""
    stand_ins: dict[str, nnx.Module] = {
        name: RowDropout(module, name, keys)
        for name, module in named_modules(model).items()
        if type(module) is nnx.Dropout
    }
    if adapter is not None:
        stand_ins |= adapted(model, adapter, parameters)
    exchange_modules(model, stand_ins)
