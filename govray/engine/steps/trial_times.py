"""When a stream's rows are tried again: data may take another branch of the model by then."""

from __future__ import annotations

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
