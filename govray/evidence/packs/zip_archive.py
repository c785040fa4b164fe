"""A zip whose bytes follow from its files alone: sorted, stored, of one time and one mode.

Nothing is compressed: compressors of other versions write other bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import IO, BinaryIO, TypeAlias
from zipfile import ZIP_STORED, ZipFile

from govray.storage.zip_entry import zip_entry

Content: TypeAlias = bytes | Callable[[], BinaryIO]
"""The bytes of a file, or what opens it where it may be larger than memory."""

Files: TypeAlias = dict[str, Content]


def write_zip(out: IO[bytes], files: Mapping[str, Content]) -> None:
    with ZipFile(out, "w", ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            with archive.open(zip_entry(name), "w", force_zip64=True) as entry:
                if isinstance(content, bytes):
                    entry.write(content)
                else:
                    with content() as stream:
                        shutil.copyfileobj(stream, entry, 1 << 20)


def zipped(files: Mapping[str, Content]) -> bytes:
    """The same in memory."""
    out = BytesIO()
    write_zip(out, files)
    return out.getvalue()
