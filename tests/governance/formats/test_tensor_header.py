"""Headers of safetensors files, beside what the library itself says of the same bytes."""

from __future__ import annotations

import json
import random
from io import BytesIO
from typing import Any

import pytest
import safetensors

from govray.errors import Malformed
from govray.governance.formats import tensor_header
from govray.governance.formats.tensor_header import DTYPE_BITS, read_header
from tests.support.table import each_row


def file(header: object, content: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(content)


def entry(start: int, stop: int, dtype: str = "F32", shape: list[int] | None = None) -> Any:
    shape = [(stop - start) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def ours(data: bytes) -> bool:
    try:
        read_header(BytesIO(data), where="x.safetensors", size=len(data))
    except Malformed:
        return False
    return True


def theirs(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


GOOD = {
    "no tensor": file({}),
    "metadata": file({"__metadata__": {"format": "pt"}}),
    "a scalar": file({"a": entry(0, 4, shape=[])}, 4),
    "an empty tensor": file({"a": entry(0, 4), "b": entry(4, 4), "c": entry(4, 8)}, 8),
    "two empty ones": file({"a": entry(0, 0), "b": entry(0, 0)}),
    "not in order": file({"b": entry(4, 8), "a": entry(0, 4)}, 8),
    "no name": file({"": entry(0, 4)}, 4),
    "two in a byte": file({"a": entry(0, 1, "F4", [2])}, 1),
    "not padded": b"\x02\0\0\0\0\0\0\0{}",
} | {dtype: file({"a": entry(0, bits, dtype, [8])}, bits) for dtype, bits in DTYPE_BITS.items()}

BAD = {
    "nothing": b"",
    "eight bytes": bytes(8),
    "longer than the file": b"\x09\0\0\0\0\0\0\0{}",
    "2^63 bytes": (1 << 63).to_bytes(8, "little"),
    "no object": file([]),
    "null": file(None),
    "no entry": file({"a": 1}),
    "an empty entry": file({"a": {}}),
    "not UTF-8": file(b'{"\xff":{}}'),
    "half a surrogate": file(b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "a byte order mark": file(b"\xef\xbb\xbf{}"),
    "padded with zeros": file(b"{}\0\0\0\0\0\0"),
    "a hole": file({"a": entry(0, 4), "b": entry(8, 12)}, 12),
    "a hole before the first": file({"a": entry(4, 8)}, 8),
    "an overlap": file({"a": entry(0, 4), "b": entry(2, 6)}, 6),
    "the same bytes twice": file({"a": entry(0, 4), "b": entry(0, 4)}, 4),
    "one within another": file({"a": entry(0, 12), "b": entry(4, 8)}, 12),
    "trailing bytes": file({"a": entry(0, 4)}, 5),
    "only trailing bytes": file({}, 1),
    "cut off": file({"a": entry(0, 4)}, 3),
    "stop before start": file({"a": entry(4, 0, shape=[1])}, 4),
    "more bytes than the shape": file({"a": entry(0, 8, shape=[1])}, 8),
    "fewer bytes than the shape": file({"a": entry(0, 4, shape=[2])}, 4),
    "no whole byte": file({"a": entry(0, 1, "F4", [1])}, 1),
    "numbers that overflow": file({"a": entry(0, 0, shape=[1 << 40, 1 << 40])}),
    "overflow before a zero": file({"a": entry(0, 0, shape=[1 << 40, 1 << 40, 0])}),
    "a negative offset": file({"a": entry(-4, 0)}, 4),
    "a float": file(b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', 4),
    "a bool": file({"a": entry(0, 4, shape=[True])}, 4),
    "three offsets": file({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, 1),
    "no dtype": file({"a": {"shape": [1], "data_offsets": [0, 1]}}, 1),
    "an unknown dtype": file({"a": entry(0, 4, "f32", [1])}, 4),
    "a field twice": file(b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
    "metadata that is a number": file({"__metadata__": {"a": 1}}),
    "metadata that is nested": file({"__metadata__": {"a": {"b": "c"}}}),
    "metadata that is a text": file({"__metadata__": "x"}),
}

STRICTER = {
    "a name twice": file(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        1,
    ),
    "another field": file({"a": entry(0, 4) | {"comment": "x"}}, 4),
    "a list for an object": file({"a": ["F32", [1], [0, 4]]}, 4),
    "null metadata": file({"__metadata__": None}),
    "white space first": file(b" {}"),
}


@each_row("name", GOOD)
def test_what_the_library_reads_is_read(name: str) -> None:
    assert theirs(GOOD[name])
    assert ours(GOOD[name])


@each_row("name", BAD)
def test_what_the_library_refuses_is_refused(name: str) -> None:
    assert not theirs(BAD[name])
    assert not ours(BAD[name])


@each_row("name", STRICTER)
def test_what_is_refused_besides(name: str) -> None:
    assert theirs(STRICTER[name])
    assert not ours(STRICTER[name])


def drawn(draw: random.Random) -> bytes:
    """A sound file of some tensors, or one with something moved, cut off or added."""
    tensors: dict[str, Any] = {}
    end = 0
    for number in range(draw.randrange(4)):
        dtype = draw.choice(list(DTYPE_BITS))
        shape = [draw.choice((0, 1, 2, 4, 8)) for _ in range(draw.randrange(3))] + [8]
        bits = DTYPE_BITS[dtype]
        for each in shape:
            bits *= each
        tensors[f"t{number}"] = entry(end, end + bits // 8, dtype, shape)
        end += bits // 8
    content = end
    for _ in range(draw.randrange(3)):
        kind = draw.randrange(6)
        if kind == 0:
            content = max(0, content + draw.choice((-8, -1, 1, 8)))
        elif tensors and kind < 6:
            chosen = tensors[draw.choice(list(tensors))]
            if kind == 1:
                chosen["data_offsets"][draw.randrange(2)] += draw.choice((-4, -1, 1, 4))
            elif kind == 2:
                shift = draw.choice((-8, -1, 1, 8))
                chosen["data_offsets"] = [each + shift for each in chosen["data_offsets"]]
            elif kind == 3:
                chosen["shape"][-1] = draw.choice((0, 1, 4, 7, 9, 1 << 40))
            elif kind == 4:
                chosen["dtype"] = draw.choice(list(DTYPE_BITS))
            else:
                tensors = dict(sorted(tensors.items(), reverse=True))
    return file(tensors, content)


def test_drawn_files_are_judged_as_the_library_judges_them() -> None:
    draw = random.Random(20261122)
    judged = {True: 0, False: 0}
    for number in range(4000):
        data = drawn(draw)
        verdict = theirs(data)
        assert ours(data) == verdict, (number, data)
        judged[verdict] += 1
    assert min(judged.values()) > 1000, judged


def test_mutated_bytes_are_never_read_where_the_library_refuses() -> None:
    draw = random.Random(20261123)
    refused = 0
    for _ in range(4000):
        data = bytearray(drawn(draw))
        for _ in range(draw.randrange(1, 3)):
            data[draw.randrange(len(data))] = draw.choice(b'{}[],:" 0123456789aU\\\x00\xff')
        if not theirs(bytes(data)):
            refused += 1
            assert not ours(bytes(data)), bytes(data)
    assert refused > 1000


def test_control_without_the_comparison_a_tensor_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that no name leads to would be in the file of which a tensor is said to be absent."""
    hiding = file({"a": entry(0, 4)}, 4 + 40)
    assert not ours(hiding)
    checked = tensor_header.parse_header
    monkeypatch.setattr(
        tensor_header, "parse_header", lambda text, *, where, rest: checked(text, where=where)
    )
    assert ours(hiding)
