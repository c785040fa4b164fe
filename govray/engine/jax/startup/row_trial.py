"""Before rows of a stream train over JAX: does a row learn from those beside it?

A few rows of a stream's first pass run for trial, and again when `due_again` says so. Nothing is
learned from them, and no number of the run changes. What must hold for each row:

1. Its loss and its gradient stay when the others are exchanged. It keeps its place and its dropout,
   and one program computes both. So nothing but its rows' order of sums rounds otherwise.
2. It has the same loss alone.

What a forward leaves behind is no matter of this trial: `routed_pass` refuses it in every pass.

A stream that has a single row in its passes is not tried. Coupling below rounding is not seen, and
neither is a branch that these rows do not take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from govray.engine.jax.routed_pass import LossFn, ModelShape, Parameters, prepare
from govray.engine.steps.batch import IGNORED, MicroBatch
from govray.engine.steps.row_difference import (
    REPEATED,
    due_again,
    require_same_gradients,
    require_same_loss,
)

_ROWS = 3

Model = tuple[ModelShape, str | None, LossFn, Parameters, Any]
"""Shape, adapter, loss, all parameters that a forward reads, and the rest of the state."""


class RowTrial:
    """Tries streams as they come."""

    def __init__(self) -> None:
        self._steps_with: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._tried: set[str] = set()

    def due(self, part: MicroBatch, step: int) -> bool:
        """Whether a stream was not tried yet, or is to be tried again, with these rows."""
        if self._last.get(part.route) != step:  # it may have several passes in a step
            self._last[part.route] = step
            self._steps_with[part.route] += 1
            if due_again(self._steps_with[part.route]):
                self._tried.discard(part.route)
        return part.route not in self._tried and len(part.positions) > 1

    def __call__(self, part: MicroBatch, keys: np.ndarray, model: Model) -> None:
        """Try some of these rows.

        Args:
            part: At least two.
            keys: Of their dropout masks, uint32 of shape (rows, 2).
            model: What they go through.

        Raises:
            Refused: A row learns from others.
        """
        count = min(_ROWS, len(part.positions))
        rows = {name: np.asarray(tensor)[:count] for name, tensor in part.tensors.items()}
        half = "bf16[" in str(_row.trace(*model, keys[:count], rows, 0, 1.0).jaxpr)
        tolerance = float(jnp.finfo(jnp.bfloat16 if half else jnp.float32).eps) ** 0.5
        for place in range(count):
            order = [row if row == place else (row + 1) % count for row in range(count)]
            turned = {name: tensor[order] for name, tensor in rows.items()}
            single = {name: tensor[place : place + 1] for name, tensor in rows.items()}
            loss, gradients = _row(*model, keys[:count], rows, place, 1.0)
            again, found = _row(*model, keys[:count], turned, place, 1.0)
            alone, _ = _row(*model, keys[place : place + 1], single, 0, 1.0)
            one = float(loss)
            for other in (again, alone):
                require_same_loss(one, float(other), abs(one), tolerance, lambda: "loss_fn")
            repeated = [_row(*model, keys[:count], rows, place, each)[1] for each in REPEATED]
            gaps = {
                name: (
                    _distance(expected, 0),
                    max(
                        _distance(again[name] / factor, expected)
                        for factor, again in zip(REPEATED, repeated, strict=True)
                    ),
                    _distance(found[name], expected),
                )
                for name, expected in gradients.items()
            }
            require_same_gradients(gaps, tolerance, lambda name: name)
        self._tried.add(part.route)


@partial(jax.jit, static_argnames=("shape", "adapter", "loss_fn"))
def _row(
    shape: ModelShape,
    adapter: str | None,
    loss_fn: LossFn,
    parameters: Parameters,
    rest: Any,
    keys: Array,
    tensors: Mapping[str, Array],
    place: int,
    factor: float,
) -> tuple[Array, dict[str, Array]]:
    """The loss of the row at a place, and the factor's multiple of its gradient."""

    def one(own: Parameters) -> Array:
        model = shape.filled(own, rest)
        prepare(model, adapter, own, keys)
        losses = loss_fn(model, tensors)
        counted = jnp.where(tensors["targets"] != IGNORED, losses, 0)
        return counted.astype(jnp.promote_types(losses.dtype, jnp.float32))[place].sum()

    loss, backward = jax.vjp(one, dict(parameters))
    return loss, backward(jnp.asarray(factor, loss.dtype))[0]


def _distance(one: Array, other: Array | int) -> float:
    return float(jnp.linalg.norm((one - other).astype(jnp.float32).ravel()))
