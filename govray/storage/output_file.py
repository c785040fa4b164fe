"""What a library writes a file through, on a disk or on an object store."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

from govray.storage.bucket_path import BucketPath
from govray.storage.place import Place


@contextmanager
def output_file(path: Place) -> Iterator[str | io.BytesIO]:
    """What a library writes a file into: a hidden file's path on a disk, else a buffer.

    At the end the hidden file is synced and gets its name. A buffer becomes the object, in one
    request. Until then there is what was there before.
    """
    if isinstance(path, BucketPath):
        buffer = io.BytesIO()
        yield buffer
        path.write_bytes(buffer.getvalue())
        return
    staged = path.with_name(f".{path.name[:48]}.{os.urandom(8).hex()}.tmp")
    try:
        yield str(staged)
        descriptor = os.open(staged, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)
