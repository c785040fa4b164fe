"""A JSON document as a file for other tools: indented, UTF-8, one final newline.

Members keep the order in which a format lists them, so equal facts give equal bytes.
"""

from __future__ import annotations

import json
from typing import Any


def json_file(value: Any) -> bytes:
    """The bytes of ``value``, in which no number is infinite or undefined."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()
