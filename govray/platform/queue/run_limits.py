"""How many workers running entries are told to have, in the folders of their runs.

Folders are looked for below the storage path. A run that keeps its folder elsewhere cannot be told,
so it is preempted whole. So is one whose driver has not made its folder yet.
"""

from __future__ import annotations

from govray.errors import Malformed
from govray.governance.submission.worker_cap import ANSWER, REQUEST, WorkerCap, read_cap, write_cap
from govray.platform.store.run_owners import run_name
from govray.platform.store.tables import QueueEntry
from govray.storage.place import Place


class RunLimits:
    """The limits of runs below a storage path. Storage that is away is no error here."""

    def __init__(self, storage: Place) -> None:
        self._storage = storage

    def reaches(self, row: QueueEntry) -> bool:
        try:
            return self._folder(row).is_dir()
        except OSError:
            return False

    def tell(self, row: QueueEntry) -> None:
        """Write what the entry says, unless it stands there or the folder is not there. Where the
        storage refuses, nothing is written. The next pass tries again."""
        folder, cap = self._folder(row), _cap(row)
        if cap is None:
            return
        try:
            if self._read(folder, REQUEST) != cap and folder.is_dir():
                write_cap(folder, REQUEST, cap)
        except OSError:
            return

    def given(self, row: QueueEntry) -> bool:
        """Whether the run has answered the latest that it was told."""
        cap = _cap(row)
        try:
            return cap is not None and self._read(self._folder(row), ANSWER) == cap
        except OSError:
            return False

    def _read(self, folder: Place, name: str) -> WorkerCap | None:
        try:
            return read_cap(folder, name)
        except Malformed:
            return None

    def _folder(self, row: QueueEntry) -> Place:
        return self._storage / run_name(row)


def _cap(row: QueueEntry) -> WorkerCap | None:
    """What the entry's run is to be told; None if it never was told anything."""
    if not row.cap_number:
        return None
    return WorkerCap(number=row.cap_number, most=row.slots if row.cap is None else row.cap)
