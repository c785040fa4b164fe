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


def resolutions(
    steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """The resolution that each number of a line is first in, 0 the coarsest.

    A part of 1/2^r of the line is drawn from resolutions 0 to r.

    Args:
        steps: Ascending.
        values: Finite, as many.
    """
    levels = np.zeros(len(steps), dtype=np.int64)
    kept, level = np.arange(len(steps)), 0
    while len(kept) > COARSE:
        level += 1
        stretch = steps[kept] >> (level + 1)
        order = np.lexsort((values[kept], stretch))
        begins = np.flatnonzero(np.diff(stretch, prepend=-1))
        ends = np.append(begins[1:], len(kept)) - 1
        newest = np.arange(begins[-1], len(kept))
        stay = np.unique(np.concatenate([order[begins], order[ends], newest, [0]]))
        if len(begins) == 1:
            break
        kept = kept[stay]
        levels[kept] = level
    found: npt.NDArray[np.int64] = levels.max(initial=0) - levels
    return found
