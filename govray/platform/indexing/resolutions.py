"""A line of numbers in several resolutions, so that a page reads about as many as it draws.

A stretch of four steps keeps its lowest and its highest number in the next coarser resolution. One
of eight steps does in the one after that, and so on, until `COARSE` numbers or fewer are left. So:

* The extremes of every stretch are in every resolution; so are the line's first and last number.
* A line is as dense at its end as at its beginning, wherever its numbers were thinned before.
* Numbers of the newest stretch stay until it is whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

COARSE = 1000
"""Numbers of the coarsest resolution at most."""


Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def resolutions(steps: Steps, values: Values) -> tuple[npt.NDArray[np.int64], int]:
    """The resolution that each number of a line is first in, 0 the coarsest; and their number.

    A part of 1/2^r of the line is drawn from resolutions 0 to r.

    Args:
        steps: Ascending.
        values: Finite, as many.
    """
    kept, found = np.arange(len(steps)), np.zeros(len(steps), dtype=np.int64)
    halved = 0
    while len(kept) > COARSE:
        stay = thinned(steps[kept], values[kept], halved)
        if stay is None:
            break
        halved += 1
        kept = kept[stay]
        found[kept] = halved
    return halved - found, halved


def resolutions_of_end(
    steps: Steps, values: Values, halved: int, *, first: bool
) -> npt.NDArray[np.int64]:
    """The resolutions of a line's end, where the line is halved so often.

    Args:
        steps, values: From a multiple of 2^(halved + 1) on; as `resolutions`.
        halved: As `resolutions` and `thinned` brought it about.
        first: Whether nothing of the line is before.
    """
    kept, found = np.arange(len(steps)), np.zeros(len(steps), dtype=np.int64)
    for level in range(halved):
        stay = thinned(steps[kept], values[kept], level, first=first)
        kept = kept if stay is None else kept[stay]
        found[kept] = level + 1
    return halved - found


def thinned(
    steps: Steps, values: Values, halved: int, *, first: bool = True
) -> npt.NDArray[np.int64] | None:
    """Which numbers of the coarsest resolution are in the next; None: all lie in one stretch.

    Args:
        steps, values: As `resolutions`.
        halved: How often the line is halved so far.
        first: Whether the first number stays, whatever it is.
    """
    stretch = steps >> (halved + 2)
    order = np.lexsort((values, stretch))
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    if len(begins) <= 1:
        return None
    ends = np.append(begins[1:], len(steps)) - 1
    newest = np.arange(begins[-1], len(steps))
    stay: npt.NDArray[np.int64] = np.unique(
        np.concatenate([order[begins], order[ends], newest, [0] if first else begins[:0]])
    )
    return stay
