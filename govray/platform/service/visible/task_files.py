"""What a task keeps in the storage: notebooks, transcripts, the output of a program.

A task's program writes there whatever it likes. So no part of a path is a link, what is listed is
bounded, and files go out as bytes to be saved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from govray.platform.service.http.problems import not_found
from govray.platform.service.visible.given_files import out_of_reach, reaching
from govray.platform.tasks.endpoint import FOLDER
from govray.platform.tasks.kept_files import FILES, OUTPUT
from govray.storage.place import Place
from govray.storage.ranged_file import RangedFile, open_ranged
from govray.storage.regular_file import folder_below

MOST = 500
"""Files and folders that are looked at for one list."""
TAIL = 1 << 14
"""Bytes of the output that a page shows."""


@dataclass(frozen=True)
class KeptFile:
    name: str
    size: int


def kept_files(storage: Place | None, task: str) -> list[KeptFile]:
    """The first `MOST`, by name; none if the task made none. Raises 409: the storage is out of
    reach; 503: it fails."""
    root, below = _below(storage, task)
    with reaching():
        try:
            if isinstance(root, Path):
                found = list(islice(_walked(root, below), MOST))
            else:
                walked = (root / below).walk_files(most=MOST)
                found = [KeptFile(name, status.st_size) for name, status in walked.items()]
        except FileNotFoundError:
            return []
    return sorted(found, key=lambda each: each.name)


def open_kept(storage: Place | None, task: str, name: str) -> RangedFile:
    """One of them. Raises 404: the task has no such file; else as `kept_files`."""
    root, below = _below(storage, task)
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name:
        raise not_found("file", name, "See the list of files")
    with reaching():
        try:
            return open_ranged(root, f"{below}/{name}")
        except FileNotFoundError:
            raise not_found("file", name, "See the list of files") from None


def output_end(storage: Place | None, task: str) -> str:
    """The end of what a program wrote; empty if it wrote nothing."""
    file = open_kept(storage, task, OUTPUT)
    try:
        begin = max(0, file.size - TAIL)
        text = file.read(begin, file.size).decode(errors="replace") if file.size else ""
    finally:
        file.close()
    return text if begin == 0 else text.partition("\n")[2]


def _below(storage: Place | None, task: str) -> tuple[Place, str]:
    if storage is None:
        raise out_of_reach()
    return storage, f"{FOLDER}/{task}/{FILES}"


def _walked(root: Path, below: str) -> Iterator[KeptFile]:
    """The regular files, each found in the open folder that has it: no link leads elsewhere."""
    held = folder_below(root, below)
    try:
        for folder, _, names, opened in islice(os.fwalk(".", dir_fd=held), MOST):
            for name in names:
                status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    path = os.path.normpath(os.path.join(folder, name))
                    if path.isprintable():
                        yield KeptFile(path, status.st_size)
    finally:
        os.close(held)
