"""The files below a folder of a disk, as objects of a source."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from govray.data.corpus import disk_errors
from govray.data.sources.stamp import Stamp
from govray.errors import UsageError


@dataclass(frozen=True)
class DiskFolder:
    """A folder; an object's name is its POSIX path below it. Links to folders are not followed."""

    path: Path

    def where(self, name: str) -> str:
        """How errors name an object."""
        return str(self.path / name)

    def list(self) -> dict[str, Stamp]:
        """Every file below the folder, in order, without hidden files and folders."""

        def fail(error: OSError) -> None:
            raise error

        names: list[str] = []
        with disk_errors(self.path):
            for parent, folders, files in os.walk(self.path, onerror=fail):
                folders[:] = [f for f in folders if not f.startswith(".")]
                paths = (Path(parent, f) for f in files if not f.startswith("."))
                names += [p.relative_to(self.path).as_posix() for p in paths if p.is_file()]
        for name in names:
            _check_name(name, self.where(name))
        return {name: self.stamp(name) for name in sorted(names)}

    def stamp(self, name: str) -> Stamp:
        """What a file is now."""
        with disk_errors(self.path / name):
            status = (self.path / name).stat()
        return Stamp(status.st_size, f"{status.st_mtime_ns} {status.st_ino}")

    def open(self, name: str, stamp: Stamp) -> pa.NativeFile:
        """A file's bytes, read and not mapped: `SourceObject.check_unchanged` compares it."""
        return pa.OSFile(str(self.path / name))


def _check_name(name: str, where: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the file's name is not UTF-8", where=repr(where), do="Rename the file."
        ) from None
