"""A file with one bit changed."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path) -> None:
    """Change the last bit; done twice, the file is as it was."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
