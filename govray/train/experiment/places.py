"""How the experiment file names files and folders."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from govray.files.place import place
from govray.files.storage_url import check_path

RECORDED = {"recorded": True}
"""Validation context of what a run recorded. Earlier versions took a URL for a folder."""


def _check_path(value: str, info: ValidationInfo) -> str:
    return value if info.context == RECORDED else check_path(value)


DiskPath = Annotated[str, AfterValidator(_check_path)]
"""A file or folder of a disk, never a URL."""


def _check_place(value: str, info: ValidationInfo) -> str:
    if info.context != RECORDED:
        place(value)
    return value


PlaceText = Annotated[str, AfterValidator(_check_place)]
"""A file or folder of a disk, or a URL of an object store."""
