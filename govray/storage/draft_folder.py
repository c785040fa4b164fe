"""A folder that takes long to fill, goes on where a killed process left it, and is whole or absent.

A draft begins with a note: what it is made from, and what its first maker chose, such as a random
salt. A second beginning from the same inputs gets that choice, so both make the same bytes. Then
two makers at once do no harm either. A part is done when its mark is written, which is last.

On a disk a draft of ``NAME`` is the hidden folder ``.NAME.partial`` beside it, readable by its
owner only. `DraftFolder.commit` syncs it and gives it its name. On a store objects cannot be
renamed, so they are written in place. The folder counts as absent until its last object is there,
which is created once.

Note and marks lie in ``.draft`` below the draft, and are deleted with the commit.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from govray.storage.atomic_file import make_folder, sync_folder, write_whole
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place
from govray.storage.staged_folder import delete_leftovers, sync_all

_OWN = ".draft"
_NOTE = "about.json"


@dataclass(frozen=True)
class DraftFolder:
    """A draft that was begun; picklable, so that tasks fill it.
    ``folder``: where it is filled; on a store, the same."""

    target: Place
    folder: Place
    inputs: str
    choice: str

    @classmethod
    def begin(cls, target: Place, inputs: str, choice: str) -> DraftFolder:
        """Go on with the draft of ``target``, or begin one.

        On a disk the caller keeps others away (`govray.storage.folder_lock`), and a draft of other
        inputs is deleted. On a store it is what is returned: another process may be making it.

        Args:
            target: It does not exist.
            inputs: Equal where the same bytes would be made.
            choice: Of a new draft.
        """
        note = json.dumps({"inputs": inputs, "choice": choice}).encode()
        if isinstance(target, BucketPath):
            path = target / _OWN / _NOTE
            with suppress(FileExistsError):
                path.create(note)
            return cls._read(target, target, path.read_bytes())
        make_folder(target.parent)
        delete_leftovers(target)
        folder = target.with_name(f".{target.name}.partial")
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = cls._read(target, folder, (folder / _OWN / _NOTE).read_bytes())
            if found.inputs == inputs:
                return found
        if folder.exists():
            shutil.rmtree(folder)
        make_folder(folder, mode=0o700)
        make_folder(folder / _OWN)
        write_whole(folder / _OWN / _NOTE, note)
        return cls(target, folder, inputs, choice)

    @classmethod
    def _read(cls, target: Place, folder: Place, note: bytes) -> DraftFolder:
        found = json.loads(note)
        return cls(target, folder, found["inputs"], found["choice"])

    def mark(self, part: str, data: bytes) -> None:
        """Say that a part is done. What belongs to it must be on the disk already."""
        write_whole(self.folder / _OWN / f"{part}.json", data)

    def marked(self, part: str) -> bytes | None:
        """What `mark` was given; None if the part is not done."""
        try:
            return (self.folder / _OWN / f"{part}.json").read_bytes()
        except FileNotFoundError:
            return None

    def commit(self, name: str, data: bytes) -> None:
        """Write the last file, and let the folder appear.

        Raises:
            FileExistsError: Another process was first, on a store.
            OSError: The system or the store refuses; then the draft is still there.
        """
        last = self.folder / name
        if isinstance(last, BucketPath):
            try:
                last.create(data)
            finally:  # where another process was first, marks of this one are left too
                if last.exists():
                    self._delete_own()
            return
        assert isinstance(self.folder, Path)
        assert isinstance(self.target, Path)
        last.write_bytes(data)
        for left in self.folder.rglob(".*.tmp"):  # of a process that was killed
            left.unlink()
        sync_all(self.folder)
        shutil.rmtree(self.folder / _OWN)
        self.folder.chmod(self._permissions(self.folder / f"{_OWN}.mode"))
        sync_folder(self.folder)
        os.rename(self.folder, self.target)
        sync_folder(self.target.parent)

    def discard(self) -> None:
        """Delete the draft, as far as the system lets it."""
        if isinstance(self.folder, Path):
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        with suppress(OSError):
            # Marks first: no part may count as done whose files are gone.
            self._delete_own()
            for name in self.folder.walk_files():
                (self.folder / name).unlink(missing_ok=True)

    def _delete_own(self) -> None:
        assert isinstance(self.folder, BucketPath)
        own = self.folder / _OWN
        with suppress(OSError):  # they do no harm
            for name in own.walk_files():
                (own / name).unlink(missing_ok=True)

    @staticmethod
    def _permissions(probe: Path) -> int:
        """Those that a new folder gets."""
        probe.mkdir()
        mode = probe.stat().st_mode
        probe.rmdir()
        return mode & 0o7777
