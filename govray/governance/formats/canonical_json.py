"""JSON with one encoding: strict in, RFC 8785 out.

What govray signs, and what it accepts as signed, has exactly one byte sequence. `encode` writes it
(RFC 8785, the JSON Canonicalization Scheme). `parse` reads a strict subset of JSON (RFC 8259, with
the limits of I-JSON, RFC 7493). `parse_canonical` also refuses any other spelling of the same
value.

Invariants:
    * ``parse(encode(value)) == value`` for every value that `encode` accepts.
    * A value that another JSON reader could see differently is refused:
      duplicate keys, integers beyond 2^53 - 1, lone surrogates, minus zero.
    * Nothing is read that is larger or deeper than its limit, or of more values.

It does not know any schema; that is `document.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import NoReturn, TypeAlias

import rfc8785

from govray.errors import Malformed

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 1 << 22
"""Values of one text, names of members not counted: a parsed value takes 60 bytes and more, its
text as few as two."""

MAX_INTEGER = 2**53 - 1
"""Integers beyond this are not exact in readers that hold numbers as doubles."""

# A large manifest has a million strings, for which the package (pure Python) takes
# seconds. Without floats, and with keys whose code point order is their UTF-16
# order, the standard library's compiled encoder writes the same bytes in a tenth.
_PLAIN = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False
)

_MAX_INTEGER_DIGITS = len(str(MAX_INTEGER)) + 1  # one more for the sign


def parse(data: bytes, *, limit: int = MAX_BYTES, where: str | None = None) -> JSON:
    """Return the value of one JSON text in UTF-8."""
    return _parse(data, limit, where)[0]


def parse_canonical(data: bytes, *, limit: int = MAX_BYTES, where: str | None = None) -> JSON:
    """Return the value of ``data``, which must be its RFC 8785 encoding."""
    value, plain = _parse(data, limit, where)
    if _write(value, plain) != data:
        _refuse("the JSON is valid but not in its canonical form (RFC 8785)", where)
    return value


def encode(value: object, *, where: str | None = None) -> bytes:
    """Return the RFC 8785 encoding of ``value``: None, bool, int, finite float, str, or
    lists, tuples and dicts of them with str keys."""
    return _write(value, _check(value, where))


def encode_plain(value: object) -> bytes:
    """Return what `encode` does, unchecked, in a fifth of the time.

    Args:
        value: One that its types keep in bounds: integers of at most 2^53 - 1, ASCII text and keys,
            no float, no deeper than ``MAX_DEPTH``.
    """
    return _PLAIN.encode(value).encode("ascii")


def sha256(data: bytes) -> str:
    """Return the digest of ``data`` as ``sha256:<64 lowercase hex>``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _parse(data: bytes, limit: int, where: str | None) -> tuple[JSON, bool]:
    """The value, and whether it is plain (see `_check`)."""
    if len(data) > limit:
        _refuse(f"{len(data)} bytes of JSON exceed the limit of {limit}", where)
    # Not fewer than there are: commas and brackets in strings count too, and empty ones twice.
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) >= MAX_VALUES:
        _refuse(f"the JSON is of more than {MAX_VALUES} values", where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(f"the JSON is not UTF-8 at byte {error.start}", where)
    if text.startswith("\ufeff"):
        _refuse("the JSON begins with a byte order mark", where)

    def pairs(items: list[tuple[str, JSON]]) -> dict[str, JSON]:
        members: dict[str, JSON] = {}
        for key, value in items:
            if key in members:
                _refuse(f"the key {_quote(key)} occurs twice in one object", where)
            members[key] = value
        return members

    def integer(digits: str) -> int:
        # Length first: int() of a very long text is slow, and limited.
        if len(digits) > _MAX_INTEGER_DIGITS:
            _refuse(f"an integer of {len(digits)} digits exceeds 2^53 - 1", where)
        if digits == "-0":
            _refuse("minus zero has two encodings", where)
        return int(digits)

    def real(digits: str) -> float:
        value = float(digits)
        if value == 0 and digits.startswith("-"):
            _refuse("minus zero has two encodings", where)
        return value

    def constant(name: str) -> NoReturn:
        _refuse(f"{name} is not a JSON number", where)

    try:
        value: JSON = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_int=integer,
            parse_float=real,
            parse_constant=constant,
        )
    except json.JSONDecodeError as error:
        _refuse(f"not JSON at line {error.lineno} column {error.colno}: {error.msg}", where)
    except RecursionError:
        _refuse(f"the JSON is nested deeper than {MAX_DEPTH}", where)
    return value, _check(value, where)


def _write(value: object, plain: bool) -> bytes:
    """RFC 8785 of a value that `_check` has seen."""
    if plain:
        return _PLAIN.encode(value).encode("utf-8")
    return rfc8785.dumps(value)  # type: ignore[arg-type]


def _check(value: object, where: str | None) -> bool:
    """Refuse a value that is outside the strict subset, at any depth.

    Iterative, so that depth costs no stack. Returns whether the value is plain: no
    float and only ASCII keys, so that `_PLAIN` encodes it as RFC 8785 does.
    """
    plain = True
    pending: list[tuple[Iterable[object], int]] = [((value,), 0)]
    while pending:
        members, depth = pending.pop()
        for item in members:
            # The two most frequent types first: a manifest has a million of them.
            if type(item) is str:
                if not item.isascii():
                    _check_text(item, where)
            elif type(item) is int:
                _check_integer(item, where)
            elif isinstance(item, list | tuple | dict):
                if depth == MAX_DEPTH:
                    _refuse(f"the JSON is nested deeper than {MAX_DEPTH}", where)
                if isinstance(item, dict):
                    for key in item:
                        if not isinstance(key, str):
                            _refuse(f"an object key is a {type(key).__name__}, not a string", where)
                        _check_text(key, where)
                        plain = plain and key.isascii()
                pending.append((item.values() if isinstance(item, dict) else item, depth + 1))
            elif isinstance(item, float):
                _check_float(item, where)
                plain = False
            else:
                _check_other(item, where)
    return plain


def _check_other(item: object, where: str | None) -> None:
    """What is no container, no float, and no str or int proper."""
    if isinstance(item, str):
        _check_text(item, where)
    elif isinstance(item, int):
        _check_integer(item, where)
    elif item is not None:
        _refuse(f"a {type(item).__name__} is not a JSON value", where)


def _check_integer(number: int, where: str | None) -> None:
    if not -MAX_INTEGER <= number <= MAX_INTEGER:
        _refuse("an integer exceeds 2^53 - 1; large counts travel as strings", where)


def _check_text(text: str, where: str | None) -> None:
    # A lone surrogate can be written as an escape but not as UTF-8.
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            _refuse("a string holds a lone surrogate, which is no character", where)


def _check_float(number: float, where: str | None) -> None:
    if not math.isfinite(number):
        _refuse("a number is not finite", where)
    # RFC 8785 writes integral doubles below 1e21 as integers.
    if MAX_INTEGER < abs(number) < 1e21:
        _refuse("a number exceeds 2^53 - 1; large counts travel as strings", where)


def _quote(text: str) -> str:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return json.dumps(shown)


def _refuse(what: str, where: str | None) -> NoReturn:
    raise Malformed(
        what, where=where or "JSON", do="Take the bytes from their source again, unedited"
    ) from None
