"""Room on a commit's disk, looked at before anything of the commit is there.

The system refuses a write on a full disk as well. By then whatever else writes there fails too: the
run's ledger, its events, a store. Quotas of an account, and buckets, are not seen.
"""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage

from govray.errors import UsageError
from govray.train.checkpoint.commit_reader import Folder

KEPT_FREE = 16 << 20
"""Bytes of a disk that are left to what is small and must not fail."""


def require_room(at: Folder, size: int) -> None:
    """Refuse a commit of so many bytes at a path, there yet or not, whose disk has no room for it.

    Raises:
        UsageError: It does not fit.
    """
    if not isinstance(at, Path):
        return
    there = next(each for each in (at, *at.absolute().parents) if each.exists())
    left = max(disk_usage(there).free - KEPT_FREE, 0)
    if size > left:
        raise UsageError(
            f"a checkpoint takes {size / 1e6:,.1f} MB, and its disk has room for "
            f"{left / 1e6:,.1f} MB",
            where=str(at),
            do="Make room, keep fewer checkpoints, or name other storage; then run again",
        )
