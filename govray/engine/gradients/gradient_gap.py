"""Whether two computations of the same gradients agree within rounding.

How large rounding is depends on the parameter. Where an exact gradient is zero, or its terms
cancel, it is larger than the gradient. So each parameter's own is measured. The same gradients are
computed again by a backward that starts from a multiple of the losses, and are divided by it.
Nothing but rounding can differ then, whatever the model does with rows.

A parameter's gradients agree if ‖found − expected‖ ≤ τ ‖expected‖ + r, where τ is √ε of float32, or
of float64. Here r is 16 times the largest distance between its repetitions. It is at most
min(1000 ε, √ε) times the norm of all gradients, with ε of the coarsest dtype. Measured over the
architectures of the tests, a gap above τ ‖expected‖ is 1.2 times that distance at most. An exact
comparison asks for equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Gradients = Mapping[str, Tensor]
"""By parameter name; a parameter without a gradient is absent."""

REPEATED = (3.0, 5.0)
"""What a backward starts from to repeat one that started from 1: other factors round otherwise."""

_ROUNDING = 16.0
"""Two orders of sums round otherwise in the forward too, which repetitions don't show."""

_FINEST = float(torch.finfo(torch.float32).eps) ** 0.5


def rounding(first: Gradients, repeated: Sequence[Gradients]) -> dict[str, float]:
    """The largest distance between repetitions of each parameter's gradient.

    Args:
        first: By a backward from the losses.
        repeated: By backwards of the same from each of `REPEATED` times the losses, in order.
    """
    return {
        name: max(
            _gap(first.get(name), again.get(name), factor)
            for factor, again in zip(REPEATED, repeated, strict=True)
        )
        for name in dict.fromkeys([*first, *(name for again in repeated for name in again)])
    }


def first_apart(
    expected: Gradients, found: Gradients, tolerance: float, repeated: Mapping[str, float]
) -> tuple[str, float] | None:
    """The first parameter whose gradients don't agree, and by how much of the expected norm.

    Args:
        expected, found: Of equal shapes for equal names, of any dtype, on one device.
        tolerance: √ε of the coarsest dtype inside the loss; 0 for equal numbers.
        repeated: What `rounding` found, of gradients of the same rows.

    Returns:
        None if all agree. None too where the expected ones are not finite, which the step reports.
    """
    norms = {name: float(gradient.double().norm()) for name, gradient in expected.items()}
    whole = math.hypot(*norms.values())
    if not math.isfinite(whole):
        return None
    most = min(1e3 * tolerance**2, tolerance) * whole
    for name in dict.fromkeys([*expected, *found]):
        gap = _gap(expected.get(name), found.get(name))
        bound = min(tolerance, _FINEST) * norms.get(name, 0.0)
        bound += min(_ROUNDING * repeated.get(name, 0.0), most)
        if not gap <= bound:
            return name, gap / norms[name] if norms.get(name) else math.inf
    return None


def _gap(expected: Tensor | None, found: Tensor | None, factor: float = 1.0) -> float:
    if expected is None or found is None:
        only = found if expected is None else expected
        return 0.0 if only is None else float(only.double().norm())
    return float((found.double() / factor - expected.double()).norm())
