"""Small files that are whole at any moment: written beside their place, then renamed into it.

What it does not do: survive a loss of power (no fsync), or serialise writers.
"""

from __future__ import annotations

import os
from pathlib import Path


def put(path: Path, data: bytes) -> None:
    """Write a file whole, in the place of one that may be there."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
