"""Whether two computations of the same gradients agree within rounding.

`govray.engine.steps.row_difference` says how rounding is measured, and how far a gradient may be.
Measured over the architectures of the tests, a gap above τ ‖expected‖ is 1.2 times the distance
between repetitions at most. An exact comparison asks for equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from govray.engine.steps.row_difference import REPEATED, gradient_bound

Gradients = Mapping[str, Tensor]
"""By parameter name; a parameter without a gradient is absent."""


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
    for name in dict.fromkeys([*expected, *found]):
        gap = _gap(expected.get(name), found.get(name))
        norm = norms.get(name, 0.0)
        if not gap <= gradient_bound(norm, repeated.get(name, 0.0), whole, tolerance):
            return name, gap / norm if norm else math.inf
    return None


def _gap(expected: Tensor | None, found: Tensor | None, factor: float = 1.0) -> float:
    if expected is None or found is None:
        only = found if expected is None else expected
        return 0.0 if only is None else float(only.double().norm())
    return float((found.double() / factor - expected.double()).norm())
