"""The folder that a task works in, kept in the storage.

On a disk it is the storage's own folder. For a bucket it is a folder of the node, whose changed
files are sent there again and again and once more at the end. What a node loses is what changed
since the last time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from govray.storage.atomic_file import make_folder
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

FILES = "files"
OUTPUT = "output.log"
"""What a program writes."""

LARGEST = 256 * 1024 * 1024
"""Bytes of a file that is sent to a bucket."""


class KeptFiles:
    """The folder of one task. ``private``: a folder of this node, for a storage that is a
    bucket."""

    def __init__(self, folder: Place, private: Path, note: Callable[[str], None]) -> None:
        self._note = note
        self._sent: dict[str, tuple[int, int]] = {}
        self._bucket: BucketPath | None = None
        if isinstance(folder, BucketPath):
            self._bucket = folder / FILES
            self.path = private / FILES
            self.path.mkdir(mode=0o700)
            self._fetch(self._bucket)
        else:
            make_folder(folder, mode=0o700)
            self.path = folder.resolve() / FILES
            make_folder(self.path, mode=0o700)

    def send(self) -> None:
        """Bring what has changed to the bucket; on a disk there is nothing to do."""
        if self._bucket is None:
            return
        for name, path in self._files():
            stat = path.stat()
            state = (stat.st_size, stat.st_mtime_ns)
            if self._sent.get(name) == state:
                continue
            if stat.st_size > LARGEST:
                self._note(f"{name} is not kept: it has more than {LARGEST} bytes")
            else:
                (self._bucket / name).write_bytes(path.read_bytes())
            self._sent[name] = state

    def _fetch(self, bucket: BucketPath) -> None:
        for name, stat in bucket.walk_files().items():
            path = self.path / name
            if ".." in Path(name).parts or stat.st_size > LARGEST:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((bucket / name).read_bytes())
            found = path.stat()
            self._sent[name] = (found.st_size, found.st_mtime_ns)

    def _files(self) -> list[tuple[str, Path]]:
        """Every file below, links to elsewhere left out."""
        return [
            (path.relative_to(self.path).as_posix(), path)
            for folder, _, names in os.walk(self.path)
            for path in (Path(folder) / name for name in names)
            if path.is_file() and not path.is_symlink()
        ]
