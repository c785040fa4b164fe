"""A folder filled on the disk, which then is uploaded below a bucket; one file of it comes last.

An object store cannot rename, so a folder there counts as whole once its last file is there. Where
a folder takes another's place, that file is deleted first. A kill in between leaves a folder that
nobody takes for one, and the next upload replaces it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from govray.storage.bucket_path import BucketPath


@contextmanager
def uploaded_folder(target: BucketPath, *, last: str) -> Iterator[Path]:
    """A new folder to fill, which becomes ``target`` when the context ends without an exception.

    Args:
        target: What was below it before is deleted.
        last: The file by which readers find the folder.
    """
    with tempfile.TemporaryDirectory(prefix="govray-") as name:
        folder = Path(name)
        yield folder
        files = {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        (target / last).unlink(missing_ok=True)
        for gone in target.walk_files().keys() - files.keys():
            (target / gone).unlink(missing_ok=True)
        for below in sorted(files, key=lambda below: (below == last, below)):
            (target / below).upload(files[below])
