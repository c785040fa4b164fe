"""Whether a run got further: a commit of it that is newer than its last start.

Commits are looked for beside the run, below the storage path. Where an experiment keeps them
elsewhere, none is seen, and each death counts as one without progress.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from govray.platform.store.run_owners import run_name
from govray.platform.store.tables import Submission
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

_COMMITS = ("checkpoint_*/manifest.json", "*/checkpoint_*/manifest.json")
"""Of a run, and of the trials of a search."""


def committed_below(storage: Place) -> Callable[[Submission, datetime], bool]:
    """Whether the run of an entry has a commit newer than a time, for runs below ``storage``. A
    storage that cannot be read has none."""

    def committed(row: Submission, since: datetime) -> bool:
        folder = storage / run_name(row)
        try:
            return any(
                modified(manifest) > since for each in _COMMITS for manifest in folder.glob(each)
            )
        except OSError:
            return False

    return committed


def modified(path: Place) -> datetime:
    """When a file was written, by the clock of its storage."""
    if isinstance(path, BucketPath):
        return path.stat().modified
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
