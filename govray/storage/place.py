"""A place: a path of a disk, or one below a bucket. The same code reads and writes both."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from govray.storage.bucket_path import BucketPath
from govray.storage.storage_url import is_url

Place: TypeAlias = Path | BucketPath


def place(text: str | Place) -> Place:
    """The place that people write: a URL of an object store, or a path."""
    if isinstance(text, str):
        return BucketPath.parse(text) if is_url(text) else Path(text)
    return text
