"""The one filter before a terminal: what it would obey is shown, and no private key is.

Text from a file, the network or another's error can move the cursor, turn writing around, or draw
lines that look like ours. Whatever writes to a terminal or a log puts such text through
`printable` first; `GovrayError` does so itself.

Private keys are told by how they begin, in PEM or DER and their hexadecimal and base64 forms. What
follows such a beginning is left out. A bare 32-byte seed looks like any digest and isn't seen. A
file holds a key only where such a beginning goes on: a text may say how keys begin.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

HIDDEN = "(a private key, not shown)"

_DEEPEST = 72  # where a terminal of 80 columns does not begin a new line yet
_BLANKS = re.compile(" {41,}")
# Letters and symbols by their category, and blank to the eye (Unicode 15, DerivedCoreProperties).
_LOOKS_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")

# Byte sequences with which private keys begin, and nothing else that is written down does.
_DER = (
    bytes.fromhex("020100300506032b6570"),  # PKCS #8 (RFC 5958), Ed25519
    bytes.fromhex("020101300506032b6570"),  # the same with its public key
    bytes.fromhex("020100301306072a8648ce3d0201"),  # PKCS #8, P-256
    bytes.fromhex("020100301006072a8648ce3d0201"),  # PKCS #8, P-384 and others
    bytes.fromhex("020100300d06092a864886f70d010101"),  # PKCS #8, RSA
    bytes.fromhex("307702010104"),  # RFC 5915, P-256
    bytes.fromhex("06092a864886f70d01050d"),  # PKCS #8, encrypted
    b"openssh-key-v1\0",
)
_BEGINNINGS = (b"PRIVATE KEY-----", *_DER)


def printable(text: str) -> str:
    """``text`` as one line that a terminal only shows.

    Line breaks, control, format and bidirectional characters become escapes such as ``\\u202e``. A
    run of blanks that could fill a line becomes a count. A private key is left out.
    """
    text = without_keys(text)
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if _shown(c) else c.encode("unicode_escape").decode() for c in text)
    return _BLANKS.sub(lambda run: f" [{len(run[0])} blanks] ", text)


def paragraph(text: str) -> str:
    """As `printable`, but line breaks are blanks: for sentences that somebody broke into lines."""
    return printable(" ".join(re.split(r"[ \t]*\r?\n\s*", text.strip())))


def lines(text: str) -> str:
    """``text`` of several lines, such as a traceback: each as `printable`, all but one indented."""
    first, *rest = without_keys(text).rstrip("\n").split("\n")
    return "\n".join([printable(first), *(f"  {_indented(each.expandtabs(4))}" for each in rest)])


def json_text(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON of the same value, less private keys, that a terminal only shows."""
    text = json.dumps(_json_without_keys(value), indent=indent, ensure_ascii=False)
    # Most lines are plain, and a character at a time takes seconds for a long listing.
    return "\n".join(
        each
        if each.isascii() and each.isprintable()
        else "".join(c if _shown(c) else json.dumps(c)[1:-1] for c in each)
        for each in text.split("\n")
    )


def without_keys(text: str) -> str:
    """``text`` up to where a private key begins in it."""
    found = _KEY.search(text)
    return f"{text[: found.start()]}{HIDDEN}" if found else text


def holds_key(data: bytes) -> bool:
    """Whether a private key begins in ``data``, and goes on."""
    return any(each in data for each in _DER) or bool(_WHOLE_KEY.search(data.decode("latin-1")))


def _indented(text: str) -> str:
    inner = text.lstrip(" ")
    return " " * min(len(text) - len(inner), _DEEPEST) + printable(inner)


def _shown(c: str) -> bool:
    return c.isprintable() and c not in _LOOKS_BLANK


def _json_without_keys(value: Any) -> Any:
    if isinstance(value, str):
        return without_keys(value)
    if isinstance(value, dict):
        return {_json_without_keys(k): _json_without_keys(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_json_without_keys(each) for each in value]
    return value


def _spellings(beginning: bytes) -> Iterator[str]:
    """Regular expressions for the bytes as hexadecimal and as base64 at each of its three phases.

    Of a base64 text only those characters count that the bytes alone decide.
    """
    yield re.escape(beginning.hex())
    yield re.escape(beginning.hex().upper())
    for phase in range(3):
        text = base64.b64encode(bytes(phase) + beginning).decode().rstrip("=")
        first, last = -(-8 * phase // 6), 8 * (phase + len(beginning)) // 6
        sure = text[first:last]
        yield re.escape(sure)
        yield re.escape(sure.translate(str.maketrans("+/", "-_")))


_SPELT = "|".join(dict.fromkeys(each for b in _BEGINNINGS for each in _spellings(b)))
_KEY = re.compile(f"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PRIVATE KEY-----|{_SPELT}")
# PEM may have lines such as "Proc-Type: 4,ENCRYPTED" before its body; JSON spells line breaks.
_WHOLE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
    r"(?:\s|\\+[nr]|[A-Za-z-]+: [^\n\\]*(?:\n|\\n))*[A-Za-z0-9+/]{20}"
    f"|(?:{_SPELT})[A-Za-z0-9+/_-]{{16}}"
)
