"""How the experiment file names files and folders."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from govray.storage.place import place
from govray.storage.storage_url import check_path

DiskPath = Annotated[str, AfterValidator(check_path)]
"""A file or folder of a disk, never a URL."""


def _check_place(value: str) -> str:
    place(value)
    return value


PlaceText = Annotated[str, AfterValidator(_check_place)]
"""A file or folder of a disk, or a URL of an object store."""
