"""What a trial of rows makes of two passes: how far apart they are, how far they may be, and what
it says. In every framework alike.

How large rounding is depends on the parameter. Where an exact gradient is zero, or its terms
cancel, it is larger than the gradient. So each parameter's own is measured. The same gradients are
computed again by a backward that starts from a multiple of the losses, and are divided by it.
Nothing but rounding can differ then, whatever the model does with rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NoReturn

from govray.errors import Refused

Gap = tuple[float, float, float]
"""Of a parameter's gradient: the norm of the expected one, the largest distance between its
repetitions, and how far another computation's is from it."""

REPEATED = (3.0, 5.0)
"""What a backward starts from to repeat one that started from 1: other factors round otherwise."""

_ROUNDING = 16.0
"""Two orders of sums round otherwise in the forward too, which repetitions don't show."""

_FINEST = 2.0**-11.5
"""√ε of float32: in a coarser dtype a parameter's own rounding is measured, not assumed."""


def apart(expected: float, found: float, scale: float) -> float:
    """|difference| by scale; 0 where there is nothing to compare with."""
    if not math.isfinite(expected) or found == expected:
        return 0.0
    gap = abs(found - expected)
    if not math.isfinite(gap) or not scale:
        return math.inf
    return gap / scale


def gradient_bound(norm: float, repeated: float, whole: float, tolerance: float) -> float:
    """How far a parameter's gradient may be from the expected one.

    That is τ ‖expected‖ + r, where τ is √ε of float32, or of float64. Here r is 16 times the
    largest distance between its repetitions. It is at most min(1000 ε, √ε) times the norm of all
    gradients, with ε of the coarsest dtype.

    Args:
        norm: Of the expected gradient.
        repeated: The largest distance between its repetitions.
        whole: The norm of all gradients.
        tolerance: √ε of the coarsest dtype inside the loss; 0 for equal numbers.
    """
    most = min(1e3 * tolerance**2, tolerance) * whole
    return min(tolerance, _FINEST) * norm + min(_ROUNDING * repeated, most)


def first_apart(gaps: Mapping[str, Gap], tolerance: float) -> tuple[str, float] | None:
    """The first parameter whose gradients don't agree, and by how much of the expected norm.
    ``tolerance``: √ε of the coarsest dtype inside the loss; 0 for equal numbers.

    Returns:
        None if all agree. None too where the expected ones are not finite, which the step reports.
    """
    whole = math.hypot(*(norm for norm, _, _ in gaps.values()))
    if not math.isfinite(whole):
        return None
    for name, (norm, repeated, gap) in gaps.items():
        if not gap <= gradient_bound(norm, repeated, whole, tolerance):
            return name, gap / norm if norm else math.inf
    return None


def require_same_loss(
    expected: float, found: float, scale: float, tolerance: float, where: Callable[[], str]
) -> None:
    """Refuse a row whose loss differs by what stands beside it. ``where``: the module, in words."""
    if (gap := apart(expected, found, scale)) > tolerance:
        _refuse_mixed(f"a row's loss differs by {gap:.1e}", where())


def require_same_gradients(
    gaps: Mapping[str, Gap], tolerance: float, where: Callable[[str], str]
) -> None:
    """Refuse a row whose gradient differs so. ``where``: the module of a parameter, in words."""
    if first := first_apart(gaps, tolerance):
        name, share = first
        _refuse_mixed(f"a row's gradient of {name} differs by {share:.1e}", where(name))


def _refuse_mixed(what: str, where: str) -> NoReturn:
    raise Refused(
        f"{what} with the rows beside it, so rows would learn from each other",
        where=where,
        do="Normalise, route and choose by each row alone, and leave losses that mix rows out: "
        "see docs/models.md",
    )


_FIRST_AGAIN, _EVERY = 16, 512
"""The time from which on each power of two is due, and how often from then on."""


def due_again(times: int) -> bool:
    """Whether what was compared at the first time is due again: at the 16th, 32nd, … 512th time,
    and then at each 512th.

    Args:
        times: How often it came, this time included.
    """
    if times < _EVERY:
        return times >= _FIRST_AGAIN and times & (times - 1) == 0
    return times % _EVERY == 0
