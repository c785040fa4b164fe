"""A JSON document as a file for other tools: indented, UTF-8, one final newline.

Members keep the order in which a format lists them, so equal facts give equal bytes.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

# What URI syntax uses (RFC 3986, section 2), and the mark of what is escaped already.
_SYNTAX = ":/?#[]@!$&'()*+,;=-._~%"


def json_file(value: Any) -> bytes:
    """The bytes of ``value``, in which no number is infinite or undefined."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def iri(url: str) -> str:
    """A URL that a credential states, as an IRI (RFC 3987): other readers refuse what is none."""
    return quote(url, safe=_SYNTAX)
