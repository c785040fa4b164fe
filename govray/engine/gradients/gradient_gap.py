"""Whether two computations of the same gradients agree within rounding.

A parameter's gradients agree if ‖found − expected‖ ≤ τ ‖expected‖ + r. Where an exact gradient is
zero, there is rounding, as large as the other parameters make it. So r is min(1000 τ², τ) times the
norm of all of them. With τ = 0 all numbers must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

Gradients = Mapping[str, Tensor]
"""By parameter name; a parameter without a gradient is absent."""


def first_apart(
    expected: Gradients, found: Gradients, tolerance: float
) -> tuple[str, float] | None:
    """The first parameter whose gradients don't agree, and by how much of the expected norm.

    Args:
        expected, found: Of equal shapes for equal names, of any dtype, on one device.
        tolerance: τ.

    Returns:
        None if all agree. None too where the expected ones are not finite, which the step reports.
    """
    norms = {name: float(gradient.double().norm()) for name, gradient in expected.items()}
    whole = math.hypot(*norms.values())
    if not math.isfinite(whole):
        return None
    rounding = min(1e3 * tolerance**2, tolerance) * whole
    for name in dict.fromkeys([*expected, *found]):
        gap = _gap(expected.get(name), found.get(name))
        if not gap <= tolerance * norms.get(name, 0.0) + rounding:
            return name, gap / norms[name] if norms.get(name) else math.inf
    return None


def _gap(expected: Tensor | None, found: Tensor | None) -> float:
    if expected is None or found is None:
        only = found if expected is None else expected
        return 0.0 if only is None else float(only.double().norm())
    return float((found.double() - expected.double()).norm())
