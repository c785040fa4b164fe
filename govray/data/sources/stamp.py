"""What tells that an object of a source is still the one that was listed."""

from __future__ import annotations

from typing import NamedTuple

from govray.errors import UsageError


class Stamp(NamedTuple):
    """An object's size and version.

    Attributes:
        version: Differs whenever the content does. Of a file: its time of change and inode. Of an
            object: its e-tag, or its time of change if the store gives none.
    """

    size: int
    version: str


def changed(where: str) -> UsageError:
    """The error of a source that does not stand still."""
    return UsageError(
        "changed while it was read",
        where=where,
        do="Read a copy, or wait until its writer is done.",
    )
