"""What a trial of rows makes of two passes: how far apart they are, how far they may be, and what
it says. In every framework alike.

How large rounding is depends on the parameter. Where an exact gradient is zero, or its terms
cancel, it is larger than the gradient. So each parameter's own is measured. The same gradients are
computed again by a backward that starts from a multiple of the losses, and are divided by it.
Nothing but rounding can differ then, whatever the model does with rows.
"""

from __future__ import annotations

import math

from govray.errors import Refused

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


def mixed_rows(what: str, where: str) -> Refused:
    """What refuses rows that differ by what stands beside them."""
    return Refused(
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
