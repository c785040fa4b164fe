"""How far two computations of the same gradients are apart, and how much of it is rounding.

`govray.engine.steps.row_difference` says how rounding is measured, and how far a gradient may be.
Measured over the architectures of the tests, a gap above τ ‖expected‖ is 1.2 times the distance
between repetitions at most. An exact comparison asks for equal numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from govray.engine.steps.row_difference import REPEATED, Gap

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


def gaps(expected: Gradients, found: Gradients, repeated: Mapping[str, float]) -> dict[str, Gap]:
    """How far each gradient is from the expected one.

    Args:
        expected, found: Of equal shapes for equal names, of any dtype, on one device.
        repeated: What `rounding` found, of gradients of the same rows.
    """
    return {
        name: (
            _gap(expected.get(name), None),
            repeated.get(name, 0.0),
            _gap(expected.get(name), found.get(name)),
        )
        for name in dict.fromkeys([*expected, *found])
    }


def _gap(expected: Tensor | None, found: Tensor | None, factor: float = 1.0) -> float:
    if expected is None or found is None:
        only = found if expected is None else expected
        return 0.0 if only is None else float(only.double().norm())
    return float((found.double() / factor - expected.double()).norm())
