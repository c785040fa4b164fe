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

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
    apart,
    due_again,
    gradient_bound,
    mixed_rows,
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
        epsilon = float(jnp.finfo(jnp.bfloat16 if half else jnp.float32).eps)
        for place in range(count):
            order = [row if row == place else (row + 1) % count for row in range(count)]
            turned = {name: tensor[order] for name, tensor in rows.items()}
            single = {name: tensor[place : place + 1] for name, tensor in rows.items()}
            loss, gradients = _row(*model, keys[:count], rows, place, 1.0)
            again, found = _row(*model, keys[:count], turned, place, 1.0)
            alone, _ = _row(*model, keys[place : place + 1], single, 0, 1.0)
            for other in (again, alone):
                gap = apart(float(loss), float(other), abs(float(loss)))
                if gap > epsilon**0.5:
                    raise mixed_rows(f"a row's loss differs by {gap:.1e}", "loss_fn")
            repeated = [
                {name: each / factor for name, each in scaled.items()}
                for factor in REPEATED
                for _, scaled in [_row(*model, keys[:count], rows, place, factor)]
            ]
            _compare(gradients, found, repeated, epsilon**0.5)
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


def _compare(
    expected: Parameters, found: Parameters, repeated: Sequence[Parameters], tolerance: float
) -> None:
    norms = {name: _norm(gradient) for name, gradient in expected.items()}
    whole = math.hypot(*norms.values())
    if not math.isfinite(whole):  # which the step reports
        return
    for name, norm in norms.items():
        rounding = max(_norm(again[name] - expected[name]) for again in repeated)
        gap = _norm(found[name] - expected[name])
        if not gap <= gradient_bound(norm, rounding, whole, tolerance):
            share = gap / norm if norm else math.inf
            raise mixed_rows(f"a row's gradient of {name} differs by {share:.1e}", name)


def _norm(gradient: Array) -> float:
    return float(jnp.linalg.norm(gradient.astype(jnp.float32).ravel()))
