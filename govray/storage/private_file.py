"""Reading a file that holds a secret, which its owner alone may read."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import BinaryIO


class OpenToOthers(OSError):
    """Others than the owner may read, write or run the file.
    ``remedy``: the command that takes theirs away."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__("others can read it")
        self.mode = mode
        self.remedy = f"chmod 600 {quote(str(path))}"


def open_private(path: Path) -> BinaryIO:
    """The file, open at its beginning to be read.

    Permissions are those of the opened file, not of what the name stands for a moment later.
    Where the system has no modes, as on Windows, they are not looked at.

    Raises:
        OpenToOthers: Others than its owner can reach it.
        ValueError: The path has a NUL in it.
    """
    file = path.open("rb")
    mode = os.fstat(file.fileno()).st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        file.close()
        raise OpenToOthers(path, mode)
    return file


def read_private(path: Path, limit: int) -> bytes:
    """The first ``limit`` bytes of a file; raises as `open_private`."""
    with open_private(path) as file:
        return file.read(limit)
