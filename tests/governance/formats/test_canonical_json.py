"""Strict JSON in, RFC 8785 out."""

from __future__ import annotations

import json
import struct

import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st

from govray.errors import Malformed
from govray.governance.formats import canonical_json
from tests.support.table import each_row

text = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-canonical_json.MAX_INTEGER, canonical_json.MAX_INTEGER) | st.floats(
    allow_nan=False, allow_infinity=False
).filter(lambda x: abs(x) <= canonical_json.MAX_INTEGER or abs(x) >= 1e21)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_parse_returns_what_encode_wrote(value: object) -> None:
    data = canonical_json.encode(value)
    assert canonical_json.parse(data) == value
    assert canonical_json.parse_canonical(data) == value


@given(values)
def test_the_encoding_is_that_of_the_reference_package(value: object) -> None:
    """Both ways of writing, the compiled one for plain values included."""
    assert canonical_json.encode(value) == rfc8785.dumps(value)


@given(values)
def test_other_spellings_of_a_value_are_refused(value: object) -> None:
    other = json.dumps(value, indent=1).encode()
    assume(other != canonical_json.encode(value))
    with pytest.raises(Malformed):
        canonical_json.parse_canonical(other)


@given(st.binary(max_size=40) | text.map(str.encode))
def test_any_bytes_give_a_value_or_malformed(data: bytes) -> None:
    try:
        value = canonical_json.parse(data)
    except Malformed:
        return
    assert canonical_json.parse(canonical_json.encode(value)) == value


def test_golden_example_of_rfc_8785() -> None:
    """Section 3.2.2's sample, without its number that is no I-JSON integer."""
    source = (
        rb'{"numbers":[1E30,4.50,2e-3,0.000000000000000000000000001],'
        rb'"string":"\u20ac$\u000F\u000aA\u0027\u0042\u0022\u005c\\\u0022\/",'
        rb'"literals":[null,true,false]}'
    )
    assert (
        canonical_json.encode(canonical_json.parse(source))
        == (
            '{"literals":[null,true,false],"numbers":[1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


@each_row(
    ("bits", "expected"),
    [
        ("0000000000000001", "5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("44b52d02c7e14af6", "1e+23"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("41b3de4355555553", "333333333.3333332"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("8000000000000000", "0"),
    ],
)
def test_golden_numbers_of_rfc_8785_appendix_b(bits: str, expected: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json.encode(number) == expected.encode()


@each_row(
    ("data", "names"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":{"b":1,"\\u0062":2}}', "twice"),
        (b"[NaN]", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"-Infinity", "-Infinity"),
        (b"1e999", "finite"),
        (b"-0", "minus zero"),
        (b"-0.0", "minus zero"),
        (b"-1e-999", "minus zero"),
        (b"9007199254740992", "2^53"),
        (b"-9007199254740992", "2^53"),
        (b"1e16", "2^53"),
        (b"1" * 5000, "2^53"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'"\xff"', "UTF-8"),
        (b"\xef\xbb\xbf1", "byte order mark"),
        (b"1 2", "line 1 column 3"),
        (b"{}\x00", "not JSON"),
        (b"", "not JSON"),
        (b"'a'", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"01", "not JSON"),
        (b'"\x01"', "not JSON"),
        (b"[" * 65 + b"]" * 65, "deeper"),
        (b"[" * 100_000 + b"]" * 100_000, "deeper"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper"),
    ],
)
def test_refused(data: bytes, names: str) -> None:
    with pytest.raises(Malformed, match=names.replace("^", r"\^")) as caught:
        canonical_json.parse(data, where="a.json")
    assert caught.value.where == "a.json"
    assert caught.value.do


def test_the_limits_are_reachable() -> None:
    assert canonical_json.parse(b"[" * 64 + b"]" * 64)
    assert canonical_json.parse(b"9007199254740991") == canonical_json.MAX_INTEGER
    assert canonical_json.parse(b"[1,2]", limit=5) == [1, 2]
    with pytest.raises(Malformed, match="limit of 4"):
        canonical_json.parse(b"[1,2]", limit=4)
