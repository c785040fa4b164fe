"""An archive of a working directory that comes from elsewhere, piece by piece.

Until it is whole, has its digest and was checked, it lies in a hidden file beside the archives, a
name that nothing opens. Then one rename gives it its name. A kill or a power cut before that leaves
the hidden file. The receiver of the next archive deletes what is older than `LEFT_SECONDS`.

For an object store the file lies in this machine's folder of temporary files, and one request
writes the object.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from govray.errors import Malformed, Refused
from govray.governance.submission.code_archive import archive_place, check_archive, largest_archive
from govray.storage.atomic_file import make_folder, stage_file, sync_folder
from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place

LEFT_SECONDS = 3600.0
"""Without a byte written until a file counts as left. One that somebody sends is written to all the
time; the service gives up after far less (`govray.platform.service.routes.archives`)."""

_PIECE = 1 << 20
_STAGED = re.compile(r"\.[0-9a-f]{48}\.[0-9a-f]{16}\.tmp")  # as `stage_file` names it


def kept_bytes(storage: Place, digest: str) -> int | None:
    """The size of the archive of a digest; None if it is not there, or is damaged.
    Reads it whole, for a damaged one has to be sent again."""
    found, size = hashlib.sha256(), 0
    try:
        with archive_place(storage, digest).open("rb") as stream:
            while piece := stream.read(_PIECE):
                found.update(piece)
                size += len(piece)
                if size > largest_archive():
                    return None
    except FileNotFoundError:
        return None
    return size if _same(found.hexdigest(), digest) else None


class ReceivedArchive:
    """What has come of an archive. `receive` makes one."""

    def __init__(self, target: Place, digest: str, staged: Path) -> None:
        self.size = 0
        self._target = target
        self._digest = digest
        self._staged = staged
        self._found = hashlib.sha256()
        self._file = staged.open("r+b", buffering=0)

    def add(self, piece: bytes) -> None:
        """Write what has come. Raises ``Refused``: it is more than an archive has."""
        self.size += len(piece)
        if self.size > largest_archive():
            raise Refused(f"an archive has at most {largest_archive()} bytes", where="archive")
        self._found.update(piece)
        left = memoryview(piece)
        while left:
            left = left[self._file.write(left) :]

    def check(self) -> None:
        """Check the digest, and then that the archive is one.
        Raises ``Malformed``, or ``Refused``: a file of it holds a secret."""
        if not _same(self._found.hexdigest(), self._digest):
            raise Malformed(
                f"what came is not what has the digest {self._digest}",
                where="archive",
                do="Send all of it, unchanged, under the SHA-256 of its bytes",
            )
        check_archive(self._file, "archive")

    def keep(self) -> None:
        """Give it its name. Raises ``OSError``: the storage refuses, and nothing has the name."""
        os.fsync(self._file.fileno())
        if isinstance(self._target, BucketPath):
            self._target.upload(self._staged)
            return
        os.replace(self._staged, self._target)
        sync_folder(self._target.parent)

    def close(self) -> None:
        """End, and delete what was not kept."""
        self._file.close()
        self._staged.unlink(missing_ok=True)  # a rename has taken it along


def receive(storage: Place, digest: str) -> ReceivedArchive:
    """Begin to receive the archive of a digest. What is not kept when it is closed is deleted."""
    target = archive_place(storage, digest)
    if isinstance(target, BucketPath):
        beside = Path(tempfile.gettempdir()) / f"{digest.removeprefix('sha256:')}.zip"
        staged = stage_file(beside, b"", mode=0o600)
    else:
        make_folder(target.parent)
        staged = stage_file(target, b"")
    try:
        delete_left(staged.parent)
        return ReceivedArchive(target, digest, staged)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def delete_left(folder: Path, *, now: float | None = None) -> None:
    """Delete what killed processes left of archives, as far as the system lets one.
    ``now``: seconds since 1970; by default this machine's clock."""
    before = (time.time() if now is None else now) - LEFT_SECONDS
    for entry in os.scandir(folder):
        if _STAGED.fullmatch(entry.name):
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.path)


def _same(found: str, digest: str) -> bool:
    return hmac.compare_digest(f"sha256:{found}", digest)
