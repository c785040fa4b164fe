"""SipHash-2-4 over arrays gives the paper's vectors, and what a walk over one message gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.governance.formats import sip_hash as module
from govray.governance.formats.sip_hash import sip_hash
from tests.support.table import each_row

# Of the reference implementation: key 00 … 0f, messages 00 01 02 …, those of whole words.
VECTORS = {
    0: "310e0edd47db6f72",
    8: "6224939a79f5f593",
    16: "db9bc2577fcc2a3f",
    24: "94af49f6c650adb8",
}
MASK = (1 << 64) - 1


def words(*messages: bytes) -> np.ndarray:
    size = len(messages[0])
    return np.frombuffer(b"".join(messages), "<u8").reshape(len(messages), size // 8)


def one_by_one(key: bytes, message: bytes) -> int:
    """The algorithm as the paper's section 2 has it, in Python's integers."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def turn(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, c, d, first, second in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
                v[a] = v[a] + v[b] & MASK
                v[c] = v[c] + v[d] & MASK
                v[b] = turn(v[b], first) ^ v[a]
                v[d] = turn(v[d], second) ^ v[c]
                v[a] = turn(v[a], 32)

    for start in range(0, len(message) + 1, 8):
        block = message[start : start + 8]
        last = b"" if len(block) == 8 else bytes(7 - len(block)) + bytes([len(message)])
        word = int.from_bytes(block + last, "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@each_row("size", VECTORS)
def test_the_papers_vectors(size: int) -> None:
    key, message = bytes(range(16)), bytes(range(size))
    expected = int.from_bytes(bytes.fromhex(VECTORS[size]), "little")
    assert one_by_one(key, message) == expected
    many = np.repeat(words(message) if size else np.empty((1, 0), np.uint64), 3, axis=0)
    assert sip_hash(key, many).tolist() == [expected] * 3


@given(st.binary(min_size=16, max_size=16), st.lists(st.binary(min_size=32, max_size=32)))
def test_many_are_each(key: bytes, messages: list[bytes]) -> None:
    given = words(*messages) if messages else np.empty((0, 4), np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", 3)
        assert sip_hash(key, given).tolist() == [one_by_one(key, m) for m in messages]
