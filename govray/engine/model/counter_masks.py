"""Masks as a function of a key and an element's place: equal on every device, whatever is beside.

The generator is SplitMix64. Its i-th output, counted from 1, is ``mix(key + i·γ)`` modulo 2^64. So
it needs no state, and a whole tensor is computed at once. Each output gives two words of 32 bits,
the lower one first. Element e of a row takes word e. It is dropped if the word, read as a
signed number, is below p·2^32 − 2^31.

It is integer arithmetic alone, so a CPU and a GPU give the same bits. Chunks bound the memory that
it needs, and change nothing.

Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators" (OOPSLA).
The constants are those of Vigna's ``splitmix64.c``, which passes BigCrush.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS_AT_ONCE = {"cpu": 1 << 16}
"""Outputs of 64 bits in one chunk: what a CPU's cache holds."""

_WORDS_ON_DEVICE = 1 << 22


def signed(number: int) -> int:
    """64 unsigned bits as the int64 with the same bits, which is what torch computes with."""
    return number - (1 << 64) if number >= 1 << 63 else number


_GAMMA = signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, signed(0xBF58476D1CE4E5B9)), (27, signed(0x94D049BB133111EB)))


def mix(words: Tensor) -> Tensor:
    """SplitMix64's finalizer, in place: a bijection of 64 bits that spreads each over all.
    ``words``: int64 of any shape, on any device; returned."""
    for shift, factor in _ROUNDS:
        words ^= _shifted(words, shift)
        words *= factor
    words ^= _shifted(words, 31)
    return words


def outputs(keys: Tensor, first: int, last: int) -> Tensor:
    """Outputs ``first`` … ``last - 1`` of each key, counted from 0.

    Args:
        keys: int64 of shape (rows,).

    Returns:
        int64 of shape (rows, last − first), on the same device.
    """
    steps = torch.arange(first + 1, last + 1, device=keys.device)
    return mix(keys.unsqueeze(1) + steps * _GAMMA)


def kept(keys: Tensor, elements: int, p: float) -> Tensor:
    """Which elements of each row are kept: each one with probability 1 − p.

    Args:
        keys: int64 of shape (rows,), on any device: one for each row.
        elements: Of a row.
        p: Of being dropped, from 0 to 1; rounded to a multiple of 2^-32.

    Returns:
        bool of shape (rows, elements), on the same device.
    """
    if p == 1.0:
        return torch.zeros(len(keys), elements, dtype=torch.bool, device=keys.device)
    least = min(round(p * 2**32), 2**32 - 1) - 2**31
    found = torch.empty(len(keys), elements, dtype=torch.bool, device=keys.device)
    at_once = _WORDS_AT_ONCE.get(keys.device.type, _WORDS_ON_DEVICE)
    words = (elements + 1) // 2
    rows = max(1, at_once // max(1, words))
    for row in range(0, len(keys), rows):
        for first in range(0, words, at_once):
            last = min(first + at_once, words)
            drawn = outputs(keys[row : row + rows], first, last).view(torch.int32)
            end = min(2 * last, elements)
            found[row : row + rows, 2 * first : end] = drawn[:, : end - 2 * first] >= least
    return found


def _shifted(words: Tensor, shift: int) -> Tensor:
    """Shift right, filling with zeros: torch's own shift of int64 fills with the sign."""
    moved = words >> shift
    moved &= (1 << (64 - shift)) - 1
    return moved
