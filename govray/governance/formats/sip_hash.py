"""SipHash-2-4 of many short messages at once: a keyed pseudorandom function of 64 bits.

Source: Aumasson and Bernstein 2012, "SipHash: a fast short-input PRF", whose names are kept. Here
in numpy's ``uint64``, whose arithmetic is modulo 2**64, for messages of whole 8-byte words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_AT_ONCE = 1 << 15
"""Messages of one piece: some megabytes, and the cost of a call does not show."""


def sip_hash(key: bytes, messages: Words) -> Words:
    """SipHash-2-4 of each row of ``messages``.

    Args:
        key: 16 bytes.
        messages: ``[n, w]`` little-endian words: messages of 8·w bytes, w below 32.

    Returns:
        ``[n]`` hashes.
    """
    k0, k1 = np.frombuffer(key, "<u8", 2).astype(np.uint64)
    found = np.empty(len(messages), np.uint64)
    for start in range(0, len(messages), _AT_ONCE):
        some = np.ascontiguousarray(messages[start : start + _AT_ONCE].T, np.uint64)
        size = some.shape[1]
        state = [
            np.full(size, np.uint64(constant) ^ k, np.uint64)
            for constant, k in (
                (0x736F6D6570736575, k0),
                (0x646F72616E646F6D, k1),
                (0x6C7967656E657261, k0),
                (0x7465646279746573, k1),
            )
        ]
        room = np.empty(size, np.uint64)
        # The last block holds no bytes of whole-word messages, and the length in its top byte.
        for word in (*some, np.uint64(8 * len(some) << 56)):
            state[3] ^= word
            for _ in range(2):
                _round(state, room)
            state[0] ^= word
        state[2] ^= np.uint64(0xFF)
        for _ in range(4):
            _round(state, room)
        found[start : start + size] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return found


def _round(v: list[Words], room: Words) -> None:
    """SipRound, in place."""
    v[0] += v[1]
    _turn(v[1], 13, room)
    v[1] ^= v[0]
    _turn(v[0], 32, room)
    v[2] += v[3]
    _turn(v[3], 16, room)
    v[3] ^= v[2]
    v[0] += v[3]
    _turn(v[3], 21, room)
    v[3] ^= v[0]
    v[2] += v[1]
    _turn(v[1], 17, room)
    v[1] ^= v[2]
    _turn(v[2], 32, room)


def _turn(values: Words, bits: int, room: Words) -> None:
    """Rotate left, in place."""
    np.right_shift(values, np.uint64(64 - bits), out=room)
    np.left_shift(values, np.uint64(bits), out=values)
    np.bitwise_or(values, room, out=values)
